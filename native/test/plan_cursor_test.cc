#include "core/plan_cursor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace kvt {
namespace {

std::shared_ptr<const FragmentTable> table_of(const std::vector<Fragment>& fragments) {
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create(fragments, table.get());
  EXPECT_TRUE(status.is_ok()) << status.message();
  return table;
}

// A fragment that is a whole slot on both sides.
Fragment whole_slots(std::size_t bytes, std::int32_t count) {
  Fragment fragment;
  fragment.source = {.base = 0x100000, .slot_bytes = bytes, .slot_stride = bytes, .slot_count = count};
  fragment.destination = {.base = 0x900000, .slot_bytes = bytes, .slot_stride = bytes, .slot_count = count};
  fragment.bytes = bytes;
  fragment.count = 1;
  return fragment;
}

std::vector<kvt::Run> take_all(PlanCursor* cursor, std::size_t max_runs, std::size_t max_bytes) {
  std::vector<kvt::Run> all;
  while (true) {
    std::vector<kvt::Run> batch;
    const std::size_t bytes = cursor->take(max_runs, max_bytes, &batch);
    if (bytes == 0) break;
    EXPECT_LE(batch.size(), max_runs);
    EXPECT_LE(bytes, max_bytes);
    std::size_t sum = 0;
    for (const kvt::Run& run : batch) sum += run.bytes;
    EXPECT_EQ(sum, bytes);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  EXPECT_TRUE(cursor->is_done());
  return all;
}

TEST(PlanCursor, ConsecutiveSlotsBecomeOneRun) {
  PlanCursor cursor({{table_of({whole_slots(1024, 16)}), {3, 7, 4, 8, 5, 9, 6, 11}}});
  EXPECT_EQ(cursor.bytes_left(), 4096U);
  const std::vector<kvt::Run> runs = take_all(&cursor, 100, 1 << 20);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].source, 0x100000U + 3 * 1024);
  EXPECT_EQ(runs[0].destination, 0x900000U + 7 * 1024);
  EXPECT_EQ(runs[0].bytes, 3072U);
  EXPECT_EQ(runs[1].destination, 0x900000U + 11 * 1024);
}

TEST(PlanCursor, FragmentsComeInOrderAndPairsInside) {
  Fragment first = whole_slots(1024, 16);
  first.bytes = 16;
  Fragment second = first;
  second.source_offset = second.destination_offset = 512;
  PlanCursor cursor({{table_of({first, second}), {0, 0, 2, 2}}});
  std::vector<std::uintptr_t> sources;
  for (const kvt::Run& run : take_all(&cursor, 1, 1 << 20)) sources.push_back(run.source - 0x100000);
  EXPECT_EQ(sources, (std::vector<std::uintptr_t>{0, 2048, 512, 2560}));
}

TEST(PlanCursor, CutsOnlyWhatIsLargerThanABatch) {
  PlanCursor cursor({{table_of({whole_slots(1000, 16)}), {0, 0, 2, 2, 4, 4}}});
  std::vector<kvt::Run> batch;
  // 1500 bytes hold one slot; the second would be cut, so it waits for the next batch.
  EXPECT_EQ(cursor.take(10, 1500, &batch), 1000U);
  EXPECT_EQ(cursor.bytes_left(), 2000U);
  // A slot larger than the batch is cut.
  EXPECT_EQ(cursor.take(10, 600, &batch), 600U);
  EXPECT_EQ(cursor.take(10, 600, &batch), 400U);
  EXPECT_EQ(cursor.take(10, 1500, &batch), 1000U);
  EXPECT_TRUE(cursor.is_done());
  EXPECT_EQ(cursor.take(10, 1500, &batch), 0U);
}

TEST(PlanCursor, BatchesEndAtPageBoundariesOfLongRuns) {
  std::vector<std::int32_t> pairs;
  for (std::int32_t i = 0; i < 10; ++i) pairs.insert(pairs.end(), {i, i});
  PlanCursor cursor({{table_of({whole_slots(1000, 16)}), pairs}});
  std::vector<kvt::Run> batch;
  EXPECT_EQ(cursor.take(10, 3500, &batch), 3000U);
  ASSERT_EQ(batch.size(), 1U);
  EXPECT_EQ(cursor.take(10, 1 << 20, &batch), 7000U);
}

TEST(PlanCursor, EmptyGroupsAndTablesAreSkipped) {
  const auto table = table_of({whole_slots(64, 4)});
  PlanCursor cursor({{table, {}}, {table_of({}), {0, 0}}, {table, {1, 2}}, {table, {}}});
  const std::vector<kvt::Run> runs = take_all(&cursor, 10, 1 << 20);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].bytes, 64U);
  PlanCursor nothing({});
  EXPECT_TRUE(nothing.is_done());
}

// Random tables and pairs against an expansion that does nothing clever: the same bytes go to the same places, exactly
// once.
TEST(PlanCursor, MovesTheSameBytesAsNaiveExpansion) {
  std::mt19937 random(20240607);
  const auto below = [&random](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  for (int round = 0; round < 400; ++round) {
    std::map<std::uintptr_t, std::uintptr_t> expected;
    std::vector<PlanGroup> groups;
    std::size_t total = 0;
    const std::size_t group_count = 1 + below(3);
    for (std::size_t g = 0; g < group_count; ++g) {
      constexpr std::size_t kPiece = 8;
      const std::size_t slots = 4 + below(8);
      // Each fragment gets its own part of the slot, so that destinations never overlap.
      const std::size_t parts = 1 + below(4);
      const std::size_t part_bytes = kPiece * (1 + below(6));
      const std::size_t slot_bytes = parts * part_bytes;
      const std::size_t padding = below(2) * 16;
      const auto slot_count = static_cast<std::int32_t>(slots);
      const SlotPool source{0x1000000 * (g + 1), slot_bytes, slot_bytes + padding, slot_count};
      const SlotPool destination{0x100000000 * (g + 1), slot_bytes, slot_bytes + below(2) * 8, slot_count};
      std::vector<Fragment> fragments;
      for (std::size_t p = 0; p < parts; ++p) {
        Fragment f{.source = source, .destination = destination};
        f.source_offset = f.destination_offset = p * part_bytes;
        f.bytes = below(2) == 0 ? kPiece : kPiece / 2;
        f.count = part_bytes / kPiece;
        f.source_stride = f.destination_stride = kPiece;
        fragments.push_back(f);
      }
      std::vector<std::int32_t> order(slots);
      std::iota(order.begin(), order.end(), 0);
      std::vector<std::int32_t> targets = order;
      if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
      if (below(2) == 0) std::shuffle(targets.begin(), targets.end(), random);
      std::vector<std::int32_t> pairs;
      for (std::size_t i = 0; i < 1 + below(slots); ++i) pairs.insert(pairs.end(), {order[i], targets[i]});

      for (const Fragment& f : fragments) {
        for (std::size_t i = 0; i < pairs.size(); i += 2) {
          for (std::size_t piece = 0; piece < f.count; ++piece) {
            for (std::size_t byte = 0; byte < f.bytes; ++byte) {
              const std::size_t at = f.source_offset + piece * kPiece + byte;
              expected[destination.base + static_cast<std::size_t>(pairs[i + 1]) * destination.slot_stride + at] =
                  source.base + static_cast<std::size_t>(pairs[i]) * source.slot_stride + at;
              ++total;
            }
          }
        }
      }
      groups.push_back({table_of(fragments), pairs});
    }

    PlanCursor cursor(groups);
    EXPECT_EQ(cursor.bytes_left(), total);
    const std::size_t max_runs = 1 + below(20);
    const std::size_t max_bytes = 1 + below(200);
    std::size_t moved = 0;
    for (const kvt::Run& run : take_all(&cursor, max_runs, max_bytes)) {
      for (std::size_t byte = 0; byte < run.bytes; ++byte) {
        const auto at = expected.find(run.destination + byte);
        ASSERT_NE(at, expected.end()) << "round " << round << ": wrote outside, or twice";
        ASSERT_EQ(at->second, run.source + byte) << "round " << round;
        expected.erase(at);
        ++moved;
      }
    }
    EXPECT_EQ(moved, total);
    EXPECT_TRUE(expected.empty()) << "round " << round;

    // Without limits nothing that touches is left apart.
    PlanCursor unlimited(groups);
    const std::vector<kvt::Run> runs = take_all(&unlimited, static_cast<std::size_t>(-1), std::size_t{1} << 40);
    for (std::size_t i = 1; i < runs.size(); ++i) {
      EXPECT_FALSE(runs[i - 1].source + runs[i - 1].bytes == runs[i].source &&
                   runs[i - 1].destination + runs[i - 1].bytes == runs[i].destination)
          << "round " << round << ", run " << i;
    }
  }
}

}  // namespace
}  // namespace kvt
