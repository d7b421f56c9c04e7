#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device/copy_plan.h"
#include "device/kernel_reference.h"
#include "device/kernels/addressing.h"
#include "device_plan.h"

namespace kvt {
namespace {

constexpr auto kUntouched = std::byte{0xa7};

std::vector<std::byte> noise(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

std::uintptr_t address_of(const std::vector<std::byte>& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data());
}

// The slice as the engine expands it, byte by byte, in canonical order.
void copy_by_cursor(const PlacedPlan& plan, std::vector<std::byte>* linear) {
  PlanCursor cursor(plan.groups);
  std::vector<Run> runs;
  while (!cursor.is_done()) cursor.take(1, 1 << 20, &runs);
  for (const Run& run : runs) {
    const auto* from = reinterpret_cast<const std::byte*>(run.source);
    if (linear != nullptr) linear->insert(linear->end(), from, from + run.bytes);
    std::memcpy(reinterpret_cast<void*>(run.destination), from, run.bytes);
  }
}

// What the kernels do with a launch, one tile after another, on the host.
void copy_by_tiles(const CopyArguments& arguments) {
  for (unsigned t = arguments.tile_begin; t < arguments.tile_end; ++t) {
    const Tile tile = tile_at(arguments, t);
    ASSERT_LE(static_cast<std::size_t>(tile.bytes) * tile.pieces, kTileBytes);
    for (unsigned p = 0; p < tile.pieces; ++p) {
      std::memcpy(reinterpret_cast<void*>(tile.destination + p * tile.destination_piece_stride),
                  reinterpret_cast<const void*>(tile.source + p * tile.source_piece_stride), tile.bytes);
    }
  }
}

class CopyPlan : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override {
    PlanGenerator generator(GetParam(), {});
    plan_ = generator.next();
    source_ = noise(plan_.source_bytes + 1, GetParam());
    destination_.assign(plan_.destination_bytes + 1, kUntouched);
    expected_ = destination_;
    placed_ = PlacedPlan::place(plan_, address_of(source_), address_of(destination_));
    copy_by_cursor(PlacedPlan::place(plan_, address_of(source_), address_of(expected_)), &linear_);
    parts_ = placed_.parts();
    ASSERT_TRUE(make_copy_arguments(parts_, &arguments_).is_ok());
  }

  RandomPlan plan_;
  std::vector<std::byte> source_, destination_, expected_, linear_;
  PlacedPlan placed_;
  std::vector<CopyPart> parts_;
  CopyArguments arguments_{};
};

TEST_P(CopyPlan, TheReferenceCopiesWhatTheCursorNames) {
  reference_copy(arguments_);
  EXPECT_EQ(destination_, expected_);
  EXPECT_EQ(arguments_.range_end, linear_.size());
}

TEST_P(CopyPlan, TilesAreTheSlice) {
  copy_by_tiles(arguments_);
  EXPECT_EQ(destination_, expected_);
}

TEST_P(CopyPlan, TilesAddUpToTheSliceAndKnowTheirPlace) {
  std::uint64_t bytes = 0;
  for (unsigned t = 0; t < arguments_.tile_end; ++t) {
    const Tile tile = tile_at(arguments_, t);
    for (unsigned p = 0; p < tile.pieces; ++p) {
      ASSERT_LE(tile.linear + std::uint64_t{p + 1} * tile.bytes, linear_.size());
      EXPECT_EQ(std::memcmp(linear_.data() + tile.linear + std::uint64_t{p} * tile.bytes,
                            reinterpret_cast<const void*>(tile.source + p * tile.source_piece_stride), tile.bytes),
                0);
    }
    bytes += std::uint64_t{tile.pieces} * tile.bytes;
  }
  EXPECT_EQ(bytes, linear_.size());
}

TEST_P(CopyPlan, ChunksGatherTheCanonicalBytesAndScatterThemBack) {
  PlanGenerator cuts(GetParam() + 1, {});
  std::vector<std::byte> arena(linear_.size());
  std::uint64_t at = 0;
  while (at < linear_.size()) {
    const std::uint64_t end = std::min<std::uint64_t>(at + cuts.pick(1, 30'000), linear_.size());
    restrict_range(parts_, at, end, &arguments_);
    ASSERT_LE(arguments_.tile_end - arguments_.tile_begin, (end - at) + 2);
    // No tile before or behind the narrowed range holds a byte of it.
    if (arguments_.tile_begin > 0) {
      const Tile before = tile_at(arguments_, arguments_.tile_begin - 1);
      EXPECT_LE(before.linear + std::uint64_t{before.pieces} * before.bytes, at);
    }
    arguments_.linear = address_of(arena) + at;
    reference_gather(arguments_);
    reference_scatter(arguments_);
    at = end;
  }
  EXPECT_EQ(arena, linear_);
  EXPECT_EQ(destination_, expected_);
}

TEST_P(CopyPlan, TheSumSeesContentAndPlace) {
  if (linear_.size() < 2) return;
  const auto sum_of = [&] {
    std::uint64_t sum = 7;
    arguments_.checksum = reinterpret_cast<std::uintptr_t>(&sum);
    reference_copy_summed(arguments_);
    return sum;
  };
  const std::uint64_t first = sum_of();
  EXPECT_EQ(destination_, expected_);
  EXPECT_EQ(sum_of(), first);
  const Tile tile = tile_at(arguments_, arguments_.tile_end / 2);
  auto* byte = reinterpret_cast<std::byte*>(tile.source);
  *byte ^= std::byte{1};
  EXPECT_NE(sum_of(), first);
}

INSTANTIATE_TEST_SUITE_P(Random, CopyPlan, testing::Range(1U, 33U));

TEST(CopyPlanLimits, RefusesMoreGroupsThanALaunchTakes) {
  const CopyTable table;
  const std::vector<CopyPart> parts(kMaxCopyGroups + 1, CopyPart{.table = &table});
  CopyArguments arguments{};
  EXPECT_EQ(make_copy_arguments(parts, &arguments).code(), StatusCode::kInvalidArgument);
}

TEST(CopyPlanLimits, RefusesMoreTilesThanThirtyTwoBits) {
  CopyTable table;
  table.fragments.resize(1);
  table.tiles_per_pair = 1U << 30;
  table.bytes_per_pair = 1;
  const CopyPart part{.table = &table, .pair_count = 4};
  CopyArguments arguments{};
  EXPECT_EQ(make_copy_arguments(std::vector<CopyPart>{part}, &arguments).code(), StatusCode::kResource);
}

TEST(CopyPlanLimits, AnEmptySliceHasNoTiles) {
  CopyArguments arguments{};
  ASSERT_TRUE(make_copy_arguments({}, &arguments).is_ok());
  EXPECT_EQ(arguments.tile_end, 0U);
  EXPECT_EQ(arguments.range_end, 0U);
}

TEST(CopyPlanAlignment, IsSeenOverAllFragments) {
  for (const std::size_t alignment : {1UL, 2UL, 8UL, 16UL, 64UL}) {
    PlanGenerator generator(5, {.max_groups = 1, .max_fragments = 6, .alignment = alignment});
    bool all_aligned = true;
    for (int i = 0; i < 20; ++i) {
      const PlacedPlan placed = PlacedPlan::place(generator.next(), 1 << 20, 1 << 20);
      all_aligned = all_aligned && placed.tables[0].traits.alignment == 16;
    }
    EXPECT_EQ(all_aligned, alignment >= 16) << alignment;
  }
}

}  // namespace
}  // namespace kvt
