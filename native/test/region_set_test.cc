#include "core/region_set.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvt {
namespace {

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

TEST(RegionSet, FindsTheRangeThatHoldsEveryByte) {
  RegionSet set;
  ASSERT_TRUE(set.add({1000, 100}));
  ASSERT_TRUE(set.add({500, 100}));
  EXPECT_EQ(set.find(1000, 100), 0U);
  EXPECT_EQ(set.find(1099, 1), 0U);
  EXPECT_EQ(set.find(500, 0), 1U);
  EXPECT_EQ(set.find(1099, 2), RegionSet::kNone);
  EXPECT_EQ(set.find(999, 1), RegionSet::kNone);
  EXPECT_EQ(set.find(0, 1), RegionSet::kNone);
  EXPECT_EQ(set.find(1001, kHuge), RegionSet::kNone);
  EXPECT_EQ(set.find(kHuge, 1), RegionSet::kNone);
}

TEST(RegionSet, RefusesWhatIsEmptyWrapsOrOverlaps) {
  RegionSet set;
  ASSERT_TRUE(set.add({1000, 100}));
  EXPECT_FALSE(set.add({5000, 0}));
  EXPECT_FALSE(set.add({kHuge - 10, 100}));
  EXPECT_FALSE(set.add({1099, 10}));
  EXPECT_FALSE(set.add({950, 51}));
  EXPECT_FALSE(set.add({900, 500}));
  EXPECT_EQ(set.ranges().size(), 1U);
}

TEST(RegionSet, NeighboursStayApart) {
  RegionSet set;
  ASSERT_TRUE(set.add({1000, 100}));
  ASSERT_TRUE(set.add({1100, 100}));
  EXPECT_EQ(set.find(1050, 100), RegionSet::kNone);
  EXPECT_EQ(set.find(1100, 100), 1U);
}

}  // namespace
}  // namespace kvt
