#include "core/bounce_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "bounce_world.h"
#include "core/slot_set.h"

namespace kvt::test {
namespace {

// The bytes of one side in canonical order, by PlanCursor, piece by piece.
std::vector<std::uint8_t> packed_by_plan(const std::vector<PlanGroup>& groups, bool source) {
  PlanCursor cursor(groups);
  std::vector<kvt::Run> runs;
  while (cursor.take(64, 1 << 20, &runs) > 0) {
  }
  std::vector<std::uint8_t> out;
  for (const kvt::Run& run : runs) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(source ? run.source : run.destination);
    out.insert(out.end(), bytes, bytes + run.bytes);
  }
  return out;
}

TEST(PackedCursor, AnyCutGivesTheBytesOfThePlanInCanonicalOrder) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    World world(&random, 24);
    const std::vector<PlanGroup> groups = world.random_slice(&random, 1 + random() % 3, 12);
    const std::vector<PackedGroup> packed = packed_sources(groups);
    const std::vector<std::uint8_t> expected = packed_by_plan(groups, true);
    ASSERT_EQ(packed_bytes(packed), expected.size());
    std::vector<std::uint8_t> got;
    for (std::uint64_t begin = 0; begin < expected.size();) {
      const std::uint64_t end = std::min<std::uint64_t>(begin + 1 + random() % 3000, expected.size());
      PackedCursor cursor(packed, PackedSide::kSource, begin, end);
      std::uint64_t at = 0;
      std::vector<PackedCursor::Piece> pieces;
      while (true) {
        pieces.clear();
        const std::size_t max_bytes = 1 + random() % 500;
        const std::size_t taken = cursor.take(1 + random() % 5, max_bytes, &pieces);
        if (taken == 0) break;
        ASSERT_LE(taken, max_bytes);
        for (const PackedCursor::Piece& piece : pieces) {
          ASSERT_EQ(piece.offset, at);
          const auto* bytes = reinterpret_cast<const std::uint8_t*>(piece.page);
          got.insert(got.end(), bytes, bytes + piece.bytes);
          at += piece.bytes;
        }
      }
      ASSERT_EQ(at, end - begin);
      ASSERT_TRUE(cursor.is_done());
      begin = end;
    }
    ASSERT_EQ(got, expected);
  }
}

TEST(PackedCursor, PiecesThatTouchComeOutAsOne) {
  std::mt19937 random(5);
  World world(&random, 16);
  const auto table = world.whole_slot_table();
  const std::vector<PackedGroup> packed{{table, {3, 4, 5, 9}}};
  PackedCursor cursor(packed, PackedSide::kSource, 0, packed_bytes(packed));
  std::vector<PackedCursor::Piece> pieces;
  while (cursor.take(100, 1 << 20, &pieces) > 0) {
  }
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].bytes, 3 * table->bytes_per_pair());
}

TEST(SplitSlice, RequestsKeepOrderBytesAndLimits) {
  std::mt19937 random(23);
  for (int round = 0; round < 20; ++round) {
    World world(&random, 3000);
    const std::vector<PlanGroup> groups = world.random_slice(&random, 1 + random() % 12, 2500);
    const std::vector<BounceRequestPlan> plans = split_slice(groups);
    std::vector<std::uint8_t> got;
    std::size_t pairs = 0;
    for (const BounceRequestPlan& plan : plans) {
      ASSERT_LE(plan.groups.size(), kMaxWantGroups);
      ASSERT_LE(plan.destination_slots.size(), kMaxWantSlots);
      ASSERT_EQ(plan.groups.size(), plan.sources.size());
      ASSERT_EQ(packed_bytes(plan.sources), plan.total_bytes);
      std::size_t at = 0;
      for (std::size_t g = 0; g < plan.groups.size(); ++g) {
        ASSERT_EQ(plan.groups[g].slot_count, plan.sources[g].slots.size());
        at += plan.groups[g].slot_count;
      }
      ASSERT_EQ(at, plan.destination_slots.size());
      pairs += at;
    }
    std::size_t expected_pairs = 0;
    for (const PlanGroup& group : groups) expected_pairs += group.slot_pairs.size() / 2;
    ASSERT_EQ(pairs, expected_pairs);
    // Slots in order, group by group.
    std::vector<std::int32_t> order;
    for (const BounceRequestPlan& plan : plans) {
      order.insert(order.end(), plan.destination_slots.begin(), plan.destination_slots.end());
    }
    std::vector<std::int32_t> expected;
    for (const PlanGroup& group : groups) {
      for (std::size_t i = 1; i < group.slot_pairs.size(); i += 2) expected.push_back(group.slot_pairs[i]);
    }
    ASSERT_EQ(order, expected);
  }
}

TEST(Shape, DiffersWhereCanonicalOrderWouldAndNotWhereOnlyAddressesDo) {
  std::mt19937 random(9);
  World one(&random, 8);
  World two(&random, 8);
  EXPECT_EQ(shape_of(*one.whole_slot_table()), shape_of(*two.whole_slot_table()));
  std::vector<std::uint64_t> shapes;
  for (const auto& table : one.tables()) shapes.push_back(shape_of(*table));
  std::sort(shapes.begin(), shapes.end());
  EXPECT_EQ(std::unique(shapes.begin(), shapes.end()), shapes.end());
}

TEST(ChooseChunk, StaysWithinItsBounds) {
  for (const std::uint64_t total : {1ULL, 100ULL, 1ULL << 20, 5ULL << 20, 100ULL << 20, 1ULL << 40}) {
    for (const std::uint64_t limit : {1000ULL, 1ULL << 20, 32ULL << 20, 1ULL << 40}) {
      const std::uint64_t chunk = choose_chunk_bytes(total, limit);
      EXPECT_GE(chunk, 1U);
      EXPECT_LE(chunk, limit);
      EXPECT_LE(chunk, total);
    }
  }
  EXPECT_EQ(choose_chunk_bytes(64ULL << 20, 32ULL << 20), (16ULL << 20) + (64ULL << 10));
}

TEST(HasDescriptors, CountsRunsAsTheyAreJoined) {
  std::mt19937 random(2);
  World world(&random, 16);
  const std::vector<PlanGroup> two{{world.whole_slot_table(), {1, 5, 2, 6, 3, 7, 9, 8}}};
  EXPECT_TRUE(has_descriptors(two, 2));
  EXPECT_FALSE(has_descriptors(two, 3));
  EXPECT_FALSE(has_descriptors(std::vector<PlanGroup>{{world.whole_slot_table(), {}}}, 1));
  World large(&random, 3000);
  std::vector<PlanGroup> many{{large.tables()[1], {}}};  // five pieces each, none of which touch
  for (std::int32_t i = 0; i < 3000; ++i) many[0].slot_pairs.insert(many[0].slot_pairs.end(), {i, i});
  EXPECT_TRUE(has_descriptors(many, 15000));
  EXPECT_FALSE(has_descriptors(many, 15001));
}

TEST(SlotSet, AnswersAsASearchDoesDenseOrSparse) {
  std::mt19937 random(3);
  for (const std::int32_t range : {1, 40, 1000, 2000000}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{30}, std::size_t{300}}) {
      std::vector<std::int32_t> slots;
      for (std::size_t i = 0; i < count; ++i) {
        slots.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(range)) - 5);
      }
      const SlotSet set(slots);
      for (int i = 0; i < 500; ++i) {
        const std::int32_t slot = static_cast<std::int32_t>(random() % static_cast<unsigned>(range + 20)) - 10;
        ASSERT_EQ(set.contains(slot), std::ranges::find(slots, slot) != slots.end()) << slot;
      }
      for (const std::int32_t slot : {INT32_MIN, INT32_MAX}) ASSERT_FALSE(set.contains(slot));
    }
  }
}

}  // namespace
}  // namespace kvt::test
