#include "core/copy_explanation.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "core/copy_choice.h"
#include "core/page_copy.h"

namespace kvt {
namespace {

// Pages of `bytes` that lie apart on both sides, `pairs` of them.
PlanGroup pages(std::size_t bytes, std::int32_t pairs = 64, const std::function<void(Fragment*)>& change = {}) {
  Fragment fragment;
  fragment.source = {.base = 0x100000, .slot_bytes = bytes, .slot_stride = 2 * bytes, .slot_count = 1 << 16};
  fragment.destination = {.base = 0x900000000, .slot_bytes = bytes, .slot_stride = 2 * bytes, .slot_count = 1 << 16};
  fragment.bytes = bytes;
  fragment.count = 1;
  if (change) change(&fragment);
  auto table = std::make_shared<FragmentTable>();
  EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
  PlanGroup group{table, {}};
  for (std::int32_t i = 0; i < pairs; ++i) group.slot_pairs.insert(group.slot_pairs.end(), {i, (i * 7 + 3) % pairs});
  return group;
}

CopyExplanation explain(const CopySituation& situation, const PlanGroup& group) {
  return explain_copy(situation, std::span(&group, 1));
}

constexpr CopySituation kP2p{.path = DataPath::kP2p, .has_bulk_kernel = true, .blocks = 16};
constexpr CopySituation kOldP2p{.path = DataPath::kP2p, .has_bulk_kernel = false, .blocks = 16};

TEST(KernelChoiceTest, WhatAUserCanMendComesBeforeWhatTheGpuLacks) {
  const auto obstacle = [](const PieceTraits& traits, bool has_bulk) {
    const KernelChoice choice = choose_kernel(traits, has_bulk);
    EXPECT_EQ(choice.method == CopyMethod::kBulk, choice.obstacle == BulkObstacle::kNone);
    return choice.obstacle;
  };
  EXPECT_EQ(obstacle({16, 16, 256}, true), BulkObstacle::kNone);
  EXPECT_EQ(obstacle({16, 16, 255}, true), BulkObstacle::kSmallPieces);
  EXPECT_EQ(obstacle({8, 16, 4096}, true), BulkObstacle::kUnaligned);
  EXPECT_EQ(obstacle({8, 8, 64}, true), BulkObstacle::kUnaligned);
  EXPECT_EQ(obstacle({16, 16, 256}, false), BulkObstacle::kOldGpu);
  EXPECT_EQ(obstacle({16, 16, 64}, false), BulkObstacle::kSmallPieces);
  EXPECT_EQ(obstacle({8, 8, 4096}, false), BulkObstacle::kUnaligned);
}

TEST(CopyExplanationTest, AlignedPagesGoByTheBulkKernel) {
  const CopyExplanation found = explain(kP2p, pages(32768));
  EXPECT_EQ(found.means, CopyMeans::kBulk);
  EXPECT_EQ(found.reason, "aligned pieces of 32768 bytes on average go by the bulk kernel; at most 16 blocks");
  EXPECT_EQ(found.remedy, "");
}

TEST(CopyExplanationTest, TheFirstNumberOutOfLineIsNamed) {
  const std::pair<std::function<void(Fragment*)>, const char*> cases[] = {
      {[](Fragment* f) { f->source.base += 4; },
       "4 bytes at a time, and not by the bulk kernel: the source's base + offset (group 0, fragment 0) is 1048580"},
      {[](Fragment* f) { f->destination.base += 1; },
       "1 byte at a time, and not by the bulk kernel: the destination's base + offset (group 0, fragment 0) is "
       "38654705665"},
      {[](Fragment* f) { f->source.slot_stride += 8; },
       "8 bytes at a time, and not by the bulk kernel: the source's slotStride (group 0, fragment 0) is 65544"},
      {[](Fragment* f) { f->destination.slot_stride += 2; },
       "2 bytes at a time, and not by the bulk kernel: the destination's slotStride (group 0, fragment 0) is 65538"},
      {[](Fragment* f) { f->bytes -= 4; },
       "16 bytes at a time, and not by the bulk kernel: the size of a piece (group 0, fragment 0) is 32764"},
      {[](Fragment* f) { f->bytes = 1024, f->count = 2, f->source_stride = 1032, f->destination_stride = 2048; },
       "8 bytes at a time, and not by the bulk kernel: the source's stride of pieces (group 0, fragment 0) is 1032"},
      {[](Fragment* f) { f->bytes = 1024, f->count = 2, f->source_stride = 2048, f->destination_stride = 1028; },
       "4 bytes at a time, and not by the bulk kernel: the destination's stride of pieces (group 0, fragment 0) is "
       "1028"}};
  for (const auto& [change, expected] : cases) {
    const CopyExplanation found = explain(kP2p, pages(32768, 64, change));
    EXPECT_EQ(found.means, CopyMeans::kRegisters);
    EXPECT_EQ(found.reason,
              std::string("pages go through registers, ") + expected + ", no multiple of 16; at most 16 blocks");
    EXPECT_NE(found.remedy.find("multiples of 16 bytes"), std::string::npos) << found.remedy;
  }
  // Of the second group, and of one with slots.
  const std::vector<PlanGroup> groups{pages(32768), pages(32768, 0, [](Fragment* f) { f->bytes = 3; }),
                                      pages(32768, 64, [](Fragment* f) { f->source_offset = 0, f->bytes = 4090; })};
  EXPECT_NE(explain_copy(kP2p, groups).reason.find("(group 2, fragment 0) is 4090"), std::string::npos);
}

TEST(CopyExplanationTest, SmallPiecesAndOldGpusGoThroughRegisters) {
  const CopyExplanation small = explain(kP2p, pages(128));
  EXPECT_EQ(small.means, CopyMeans::kRegisters);
  EXPECT_EQ(small.reason,
            "pieces of 128 bytes on average go through registers and not by the bulk kernel, which takes pieces of 256 "
            "bytes and more; at most 16 blocks");
  EXPECT_NE(small.remedy.find("blockLayout"), std::string::npos) << small.remedy;
  const CopyExplanation old = explain(kOldP2p, pages(32768));
  EXPECT_EQ(old.means, CopyMeans::kRegisters);
  EXPECT_EQ(
      old.reason,
      "aligned pieces of 32768 bytes on average go through registers: the bulk kernel needs compute capability 9.x "
      "or 10.x; at most 16 blocks");
  EXPECT_EQ(old.remedy, "");
}

TEST(CopyExplanationTest, AFewBlocksDoNotFillTheLink) {
  CopySituation situation = kP2p;
  situation.blocks = 1;
  const CopyExplanation found = explain(situation, pages(32768));
  EXPECT_EQ(found.means, CopyMeans::kBulk);
  EXPECT_NE(found.reason.find("; at most 1 block, which does not fill NVLink"), std::string::npos) << found.reason;
  EXPECT_EQ(found.remedy, "raise copyBlocks to 8 or more");
  situation.blocks = 8;
  EXPECT_EQ(explain(situation, pages(32768)).remedy, "");
}

TEST(CopyExplanationTest, LongRunsGoByTheCopyEngines) {
  const auto joined = [](Fragment* f) { f->source.slot_stride = f->destination.slot_stride = f->bytes; };
  PlanGroup group = pages(1 << 20, 0, joined);
  for (std::int32_t i = 0; i < 8; ++i) group.slot_pairs.insert(group.slot_pairs.end(), {i, i});
  EXPECT_EQ(explain(kP2p, group).means, CopyMeans::kEngines);
  EXPECT_EQ(explain(kOldP2p, group).means, CopyMeans::kEngines);
  group.slot_pairs = {0, 0, 2, 1, 4, 2, 6, 3};
  EXPECT_EQ(explain(kP2p, group).means, CopyMeans::kBulk);
}

TEST(CopyExplanationTest, BouncedPagesOfAGpuMeetPackedBytesOfEverySide) {
  const CopySituation situation{.path = DataPath::kBounce, .bounces_device = true, .can_bounce = true};
  const CopyExplanation aligned = explain(situation, pages(4096));
  EXPECT_EQ(aligned.means, CopyMeans::kRegisters);
  EXPECT_EQ(
      aligned.reason,
      "gather and scatter kernels go through registers, 16 bytes at a time; frames go by NIXL's notifications, as to "
      "any peer on another machine, in another network namespace or of another user");
  EXPECT_EQ(aligned.remedy, "");
  CopySituation near = situation;
  near.has_near_frames = true;
  EXPECT_EQ(explain(near, pages(4096)).reason,
            "gather and scatter kernels go through registers, 16 bytes at a time; frames go over a local socket");
  // Both sides are as far off, which helps p2p alone.
  const auto off = [](Fragment* f) { f->source.base += 8, f->destination.base += 8; };
  const CopyExplanation unaligned = explain(situation, pages(4096, 64, off));
  EXPECT_EQ(unaligned.means, CopyMeans::kRegisters);
  EXPECT_NE(unaligned.reason.find("8 bytes at a time instead of 16: the source's base + offset"), std::string::npos)
      << unaligned.reason;
  EXPECT_NE(unaligned.remedy, "");
  EXPECT_EQ(explain({.path = DataPath::kBounce, .can_bounce = true}, pages(4096, 64, off)).means, CopyMeans::kThread);
}

TEST(CopyExplanationTest, ManySmallDescriptorsWantAnArena) {
  for (const CopySituation& situation :
       {CopySituation{.path = DataPath::kRdma}, CopySituation{.path = DataPath::kHost, .is_nixl = true}}) {
    const CopyExplanation few = explain(situation, pages(64, 1023));
    EXPECT_EQ(few.means, CopyMeans::kDescriptors);
    EXPECT_EQ(few.reason, "about 1023 descriptors of 64 bytes on average, one per contiguous run");
    EXPECT_EQ(few.remedy, "");
    EXPECT_EQ(explain(situation, pages(16385, 1024)).remedy, "");
    const CopyExplanation many = explain(situation, pages(16384, 1024));
    EXPECT_NE(many.reason.find("each of which holds up the progress thread"), std::string::npos) << many.reason;
    EXPECT_NE(many.remedy.find("kvCacheBounceSizeMb"), std::string::npos) << many.remedy;
    CopySituation with_arena = situation;
    with_arena.can_bounce = true;
    EXPECT_EQ(explain(with_arena, pages(16384, 1024)).remedy, "");
  }
}

TEST(CopyExplanationTest, TheHostAgentsThreadTakesTurnsWherePagesAreLinedUp) {
  const CopySituation host;
  const CopyExplanation lined_up = explain(host, pages(4096));
  EXPECT_EQ(lined_up.means, CopyMeans::kThread);
  EXPECT_EQ(lined_up.remedy, "");
  const std::function<void(Fragment*)> changes[] = {
      [](Fragment* f) { f->destination.base += 32; }, [](Fragment* f) { f->destination.slot_stride += 32; },
      [](Fragment* f) { f->bytes = 4000; }, [](Fragment* f) { f->bytes = 128; }};
  for (const auto& change : changes) {
    const CopyExplanation found = explain(host, pages(4096, 64, change));
    EXPECT_EQ(found.means, CopyMeans::kThread);
    EXPECT_EQ(found.reason.find("one piece after the other, not several in turns") != std::string::npos,
              kCopiesTakeTurns)
        << found.reason;
    EXPECT_EQ(found.remedy.empty(), !kCopiesTakeTurns) << found.remedy;
  }
  // Where the source lies is all the same.
  EXPECT_EQ(explain(host, pages(4096, 64, [](Fragment* f) { f->source.base += 1; })).reason, lined_up.reason);
}

}  // namespace
}  // namespace kvt
