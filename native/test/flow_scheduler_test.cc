#include "core/flow_scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace kvt {
namespace {

// Each item takes `batches` turns; gives the order of turns.
std::vector<ItemId> run_all(FlowScheduler* scheduler, std::map<ItemId, int> batches) {
  std::vector<ItemId> turns;
  while (const auto head = scheduler->head()) {
    turns.push_back(*head);
    if (--batches[*head] == 0) {
      scheduler->finish_head();
    } else {
      scheduler->end_turn();
    }
  }
  return turns;
}

TEST(FlowScheduler, FlowsTakeTurnsBatchByBatch) {
  FlowScheduler scheduler;
  scheduler.push(1, 10);
  scheduler.push(2, 20);
  scheduler.push(3, 30);
  EXPECT_EQ(run_all(&scheduler, {{10, 3}, {20, 1}, {30, 2}}), (std::vector<ItemId>{10, 20, 30, 10, 30, 10}));
  EXPECT_TRUE(scheduler.is_empty());
}

TEST(FlowScheduler, ItemsOfAFlowRunInOrder) {
  FlowScheduler scheduler;
  scheduler.push(1, 10);
  scheduler.push(1, 11);
  scheduler.push(2, 20);
  EXPECT_EQ(run_all(&scheduler, {{10, 2}, {11, 1}, {20, 3}}), (std::vector<ItemId>{10, 20, 10, 20, 11, 20}));
}

TEST(FlowScheduler, ALateSmallFlowWaitsForOneBatchOnly) {
  FlowScheduler scheduler;
  scheduler.push(1, 10);
  ASSERT_EQ(scheduler.head(), 10U);
  scheduler.push(2, 20);
  scheduler.end_turn();
  EXPECT_EQ(scheduler.head(), 20U);
}

TEST(FlowScheduler, AParkedFlowHoldsItsItemsAndNobodyElses) {
  FlowScheduler scheduler;
  scheduler.push(1, 10);
  scheduler.push(1, 11);
  scheduler.push(2, 20);
  scheduler.park();
  EXPECT_EQ(scheduler.head(), 20U);
  scheduler.finish_head();
  EXPECT_EQ(scheduler.head(), std::nullopt);
  EXPECT_FALSE(scheduler.is_empty());
  scheduler.wake(1);
  scheduler.wake(1);
  EXPECT_EQ(run_all(&scheduler, {{10, 1}, {11, 1}}), (std::vector<ItemId>{10, 11}));
}

TEST(FlowScheduler, RemovalAnywhereKeepsTheRest) {
  FlowScheduler scheduler;
  for (const ItemId item : {10, 11, 12}) scheduler.push(1, item);
  scheduler.push(2, 20);
  EXPECT_TRUE(scheduler.remove(1, 11));
  EXPECT_FALSE(scheduler.remove(1, 11));
  EXPECT_FALSE(scheduler.remove(9, 10));
  EXPECT_TRUE(scheduler.remove(2, 20));
  EXPECT_EQ(run_all(&scheduler, {{10, 1}, {12, 1}}), (std::vector<ItemId>{10, 12}));
}

TEST(FlowScheduler, AParkedFlowThatLosesItsHeadIsAskedAgain) {
  FlowScheduler scheduler;
  scheduler.push(1, 10);
  scheduler.push(1, 11);
  scheduler.park();
  EXPECT_TRUE(scheduler.remove(1, 10));
  EXPECT_EQ(scheduler.head(), 11U);
}

TEST(FlowScheduler, NothingIsLostAndOrderHoldsUnderRandomUse) {
  std::mt19937 random(99);
  const auto below = [&random](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  FlowScheduler scheduler;
  std::map<FlowId, std::vector<ItemId>> expected;
  std::set<FlowId> parked;
  ItemId next = 1;
  for (int step = 0; step < 50'000; ++step) {
    switch (below(6)) {
      case 0:
      case 1: {
        const FlowId flow = below(5);
        scheduler.push(flow, next);
        expected[flow].push_back(next++);
        break;
      }
      case 2: {
        const FlowId flow = below(5);
        scheduler.wake(flow);
        parked.erase(flow);
        break;
      }
      case 3: {
        const FlowId flow = below(5);
        std::vector<ItemId>& items = expected[flow];
        if (items.empty()) break;
        const std::size_t at = below(items.size());
        ASSERT_TRUE(scheduler.remove(flow, items[at]));
        items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
        if (at == 0 || items.empty()) parked.erase(flow);
        break;
      }
      default: {
        const auto head = scheduler.head();
        if (!head) break;
        bool found = false;
        for (auto& [flow, items] : expected) {
          if (items.empty() || items.front() != *head) continue;
          ASSERT_FALSE(parked.contains(flow));
          found = true;
          if (below(2) == 0) {
            scheduler.finish_head();
            items.erase(items.begin());
          } else {
            scheduler.park();
            parked.insert(flow);
          }
          break;
        }
        ASSERT_TRUE(found) << "the head is not the first of its flow";
      }
    }
  }
  for (FlowId flow = 0; flow < 5; ++flow) scheduler.wake(flow);
  std::size_t left = 0;
  for (const auto& [flow, items] : expected) left += items.size();
  for (; scheduler.head(); scheduler.finish_head()) --left;
  EXPECT_EQ(left, 0U);
  EXPECT_TRUE(scheduler.is_empty());
}

}  // namespace
}  // namespace kvt
