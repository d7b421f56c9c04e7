// The arena: BuddyAllocator against a map of bytes, CreditScheduler's turns, windows and end of starvation.

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <vector>

#include "core/buddy_allocator.h"
#include "core/credit_scheduler.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMin = 64;
constexpr std::uint64_t kMax = 1024;

BuddyAllocator allocator_of(std::uint64_t bytes) {
  BuddyAllocator out;
  const Status status = BuddyAllocator::create(bytes, kMin, kMax, &out);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return out;
}

TEST(BuddyAllocator, AgreesWithANaiveModel) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t units = 1 + random() % 6;
    BuddyAllocator arena = allocator_of(units * kMax + random() % kMax);
    ASSERT_EQ(arena.capacity(), units * kMax);
    std::vector<bool> taken(units * kMax / kMin, false);
    std::map<std::uint64_t, std::uint64_t> blocks;
    for (int step = 0; step < 600; ++step) {
      if (random() % 2 == 0 || blocks.empty()) {
        const std::uint64_t bytes = 1 + random() % (kMax + 100);
        const std::uint64_t begin = random() % (units + 1);
        const std::uint64_t end = begin + random() % (units - begin + 1);
        const auto side = random() % 2 == 0 ? BuddyAllocator::Side::kLow : BuddyAllocator::Side::kHigh;
        const auto got = arena.allocate(bytes, {begin * kMax, end * kMax}, side);
        const std::uint64_t size = std::max(std::bit_ceil(bytes), kMin);
        // Any aligned free place of that size is a block or inside one, because free buddies are always joined.
        std::vector<std::uint64_t> fitting;
        for (std::uint64_t at = begin * kMax; bytes <= kMax && at + size <= end * kMax; at += size) {
          bool is_free = true;
          for (std::uint64_t i = at / kMin; i < (at + size) / kMin; ++i) is_free = is_free && !taken[i];
          if (is_free) fitting.push_back(at);
        }
        ASSERT_EQ(got.has_value(), !fitting.empty()) << "round " << round << " step " << step;
        if (!got) continue;
        ASSERT_NE(std::find(fitting.begin(), fitting.end(), *got), fitting.end());
        for (std::uint64_t i = *got / kMin; i < (*got + size) / kMin; ++i) taken[i] = true;
        blocks.emplace(*got, size);
      } else {
        auto at = blocks.begin();
        std::advance(at, random() % blocks.size());
        ASSERT_TRUE(arena.release(at->first).is_ok());
        for (std::uint64_t i = at->first / kMin; i < (at->first + at->second) / kMin; ++i) taken[i] = false;
        blocks.erase(at);
      }
      std::uint64_t used = 0;
      for (const auto& [offset, size] : blocks) used += size;
      ASSERT_EQ(arena.used(), used);
    }
    for (const auto& [offset, size] : blocks) ASSERT_TRUE(arena.release(offset).is_ok());
    // Joined again: every unit is there in one piece.
    for (std::uint64_t i = 0; i < units; ++i) {
      ASSERT_TRUE(arena.allocate(kMax, {0, arena.capacity()}, BuddyAllocator::Side::kLow));
    }
    ASSERT_EQ(arena.used(), arena.capacity());
  }
}

TEST(BuddyAllocator, WrongReleasesAreTypedAndChangeNothing) {
  BuddyAllocator arena = allocator_of(2 * kMax);
  const BuddyAllocator::Window all{0, arena.capacity()};
  const auto first = arena.allocate(256, all, BuddyAllocator::Side::kLow);
  ASSERT_EQ(first, 0U);
  EXPECT_EQ(arena.release(64).code(), StatusCode::kInvalidArgument) << "inside a block";
  EXPECT_EQ(arena.release(1).code(), StatusCode::kInvalidArgument) << "between blocks";
  EXPECT_EQ(arena.release(2 * kMax).code(), StatusCode::kInvalidArgument) << "behind the arena";
  EXPECT_EQ(arena.release(512).code(), StatusCode::kState) << "never handed out";
  EXPECT_TRUE(arena.release(0).is_ok());
  EXPECT_EQ(arena.release(0).code(), StatusCode::kState) << "twice";
  EXPECT_EQ(arena.used(), 0U);
}

TEST(BuddyAllocator, WrongSizesAreRefused) {
  BuddyAllocator arena;
  EXPECT_EQ(BuddyAllocator::create(4096, 48, 1024, &arena).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BuddyAllocator::create(4096, 1024, 64, &arena).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BuddyAllocator::create(1000, 64, 1024, &arena).code(), StatusCode::kInvalidArgument);
}

CreditScheduler scheduler_of(std::uint64_t units, std::size_t held = 8) {
  CreditScheduler out;
  const Status status = CreditScheduler::create({.arena_bytes = units * kMax,
                                                 .min_block = kMin,
                                                 .max_chunk = kMax,
                                                 .max_held_per_flow = held,
                                                 .drain_limit = 1000ms},
                                                &out);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return out;
}

TEST(CreditScheduler, AnArenaBelowTwoChunksIsRefusedWithTheRemedy) {
  CreditScheduler out;
  const Status status =
      CreditScheduler::create({.arena_bytes = 2 * kMax - 1, .min_block = kMin, .max_chunk = kMax}, &out);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("kvCacheBounceSizeMb"), std::string::npos) << status.message();
  EXPECT_TRUE(CreditScheduler::create({.arena_bytes = 2 * kMax, .min_block = kMin, .max_chunk = kMax}, &out).is_ok());
  // 700 is rounded up to 1024.
  EXPECT_FALSE(CreditScheduler::create({.arena_bytes = 2000, .min_block = kMin, .max_chunk = 700}, &out).is_ok());
}

TEST(CreditScheduler, FlowsTakeTurnsChunkByChunk) {
  CreditScheduler credits = scheduler_of(9);
  credits.push(1, 11, 4, kMax, 100);
  credits.push(2, 21, 2, kMax, kMax);
  credits.push(3, 31, 1, kMax, 64);
  std::vector<std::pair<FlowId, std::uint32_t>> order;
  while (const auto credit = credits.next({})) order.emplace_back(credit->flow, credit->chunk);
  const std::vector<std::pair<FlowId, std::uint32_t>> expected{{1, 0}, {2, 0}, {3, 0}, {1, 1}, {2, 1}, {1, 2}, {1, 3}};
  EXPECT_EQ(order, expected);
}

TEST(CreditScheduler, AFlowHoldsNoMoreThanItsLimitAndGoesOnWhenOneIsFreed) {
  CreditScheduler credits = scheduler_of(16, 3);
  credits.push(1, 1, 10, 64, 64);
  std::vector<CreditScheduler::Credit> held;
  while (const auto credit = credits.next({})) held.push_back(*credit);
  ASSERT_EQ(held.size(), 3U);
  ASSERT_TRUE(credits.release(1, held[1].offset).is_ok());
  const auto next = credits.next({});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->chunk, 3U);
  // What is set aside stays taken but does not stop its flow.
  credits.set_aside(1);
  ASSERT_TRUE(credits.next({}));
  EXPECT_FALSE(credits.next({}));
  EXPECT_TRUE(credits.release_set_aside(held[0].offset).is_ok());
  EXPECT_EQ(credits.release(1, held[0].offset).code(), StatusCode::kState);
}

TEST(CreditScheduler, GrantsNeverTakeTheLastUnitAndStagingNeverMoreThanHalf) {
  for (const std::uint64_t units : {2U, 3U, 4U, 7U}) {
    CreditScheduler credits = scheduler_of(units, 100);
    credits.push(1, 1, 100, kMax, kMax);
    std::uint64_t granted = 0;
    while (credits.next({})) ++granted;
    EXPECT_EQ(granted, units - 1);
    EXPECT_FALSE(credits.stage(kMax, CreditScheduler::StagingKind::kAhead));
    EXPECT_TRUE(credits.stage(kMax, CreditScheduler::StagingKind::kGranted)) << "or two sides wait for each other";

    CreditScheduler outbound = scheduler_of(units);
    std::uint64_t ahead = 0;
    while (outbound.stage(kMax, CreditScheduler::StagingKind::kAhead)) ++ahead;
    EXPECT_EQ(ahead, units / 2 - 1);
    std::uint64_t staged = ahead;
    while (outbound.stage(kMax, CreditScheduler::StagingKind::kGranted)) ++staged;
    EXPECT_EQ(staged, units / 2);
    outbound.push(1, 1, 1, kMax, kMax);
    EXPECT_TRUE(outbound.next({})) << "a full staging leaves room for what comes";
  }
}

TEST(CreditScheduler, ALargeChunkIsNotStarvedBySmallOnes) {
  CreditScheduler credits = scheduler_of(2, 1000);  // one unit for grants
  BounceTime now{};
  credits.push(1, 1, 1000000, 64, 64);
  std::vector<std::uint64_t> held;
  for (int i = 0; i < 4; ++i) held.push_back(credits.next(now)->offset);
  credits.push(2, 2, 1, kMax, kMax);
  int others = 0;
  // Small chunks come and go for ever; one always stays.
  for (int step = 0; step < 1000; ++step) {
    const auto credit = credits.next(now);
    if (credit && credit->flow == 2) {
      EXPECT_LT(others, 64);
      return;
    }
    if (credit) {
      ++others;
      held.push_back(credit->offset);
    }
    if (!held.empty() && (!credit || held.size() > 12)) {
      ASSERT_TRUE(credits.release(1, held.front()).is_ok());
      held.erase(held.begin());
    }
  }
  FAIL() << "the large chunk was never granted, " << others << " small ones were";
}

TEST(CreditScheduler, ADrainThatCannotSucceedEndsByTime) {
  CreditScheduler credits = scheduler_of(2, 1000);
  BounceTime now{};
  credits.push(1, 1, 1000, 64, 64);
  const auto kept = credits.next(now);  // never given back
  ASSERT_TRUE(kept);
  credits.push(2, 2, 1, kMax, kMax);
  int granted = 0;
  while (credits.next(now)) ++granted;
  EXPECT_LT(granted, 15) << "the others waited for the large chunk";
  ASSERT_TRUE(credits.drain_until());
  EXPECT_EQ(*credits.drain_until() - now, 1000ms);
  now += 999ms;
  EXPECT_FALSE(credits.next(now));
  now += 1ms;
  EXPECT_TRUE(credits.next(now)) << "the others go on";
}

TEST(CreditScheduler, WhatIsRemovedIsNotGranted) {
  CreditScheduler credits = scheduler_of(8);
  credits.push(1, 1, 3, 64, 64);
  credits.push(1, 2, 1, 64, 64);
  ASSERT_EQ(credits.next({})->item, 1U);
  credits.remove(1, 1);
  credits.remove(1, 77);
  credits.remove(9, 1);
  EXPECT_EQ(credits.next({})->item, 2U);
  EXPECT_FALSE(credits.next({}));
}

}  // namespace
}  // namespace kvt
