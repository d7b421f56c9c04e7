#include <gtest/gtest.h>

#include <vector>

#include "core/path_cost.h"

namespace kvt {
namespace {

enum class PageKind : std::uint8_t { kPages, kSplit, kLayers };

struct MeasuredOrder {
  PageKind kind;
  std::size_t page_bytes;
  std::uint64_t bytes;
  GpuLink link;
  std::vector<DataPath> fastest_first;
};

// Slots of one layer that follow each other on neither side; kSplit: the halves of slots; kLayers: 64 pieces a slot.
PlanGroup slice_of(const MeasuredOrder& measured) {
  const std::uint32_t pieces = measured.kind == PageKind::kLayers ? 64 : 1;
  const std::size_t slot = measured.page_bytes * pieces * (measured.kind == PageKind::kSplit ? 2 : 1);
  const auto pairs = static_cast<std::int32_t>(measured.bytes / (measured.page_bytes * pieces));
  Fragment fragment;
  fragment.source = {std::uintptr_t{1} << 40, slot, slot, 2 * pairs};
  fragment.destination = {std::uintptr_t{1} << 44, slot, slot, 2 * pairs};
  fragment.bytes = measured.page_bytes;
  fragment.count = pieces;
  fragment.source_stride = fragment.destination_stride = measured.page_bytes;
  auto table = std::make_shared<FragmentTable>();
  EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
  PlanGroup group{table, {}};
  for (std::int32_t i = 0; i < pairs; ++i)
    group.slot_pairs.insert(group.slot_pairs.end(), {2 * i, 2 * (pairs - 1 - i)});
  return group;
}

TEST(PathOrderTest, TheModelPutsThePathsInTheOrderThatWasMeasured) {
  const std::vector<MeasuredOrder> all = {
#include "measured_path_order.inc"
  };
  // Otherwise the results were not there when the table was written.
  ASSERT_GE(all.size(), 10U);
  for (const MeasuredOrder& measured : all) {
    const PlanGroup group = slice_of(measured);
    const SliceShape shape = shape_of(std::span(&group, 1));
    ASSERT_EQ(shape.bytes, measured.bytes);
    for (std::size_t i = 1; i < measured.fastest_first.size(); ++i) {
      const DataPath faster = measured.fastest_first[i - 1];
      const DataPath slower = measured.fastest_first[i];
      EXPECT_LT(estimate_us(faster, shape, measured.link), estimate_us(slower, shape, measured.link))
          << "path " << static_cast<int>(faster) << " was faster than " << static_cast<int>(slower) << " with "
          << measured.page_bytes << " bytes of kind " << static_cast<int>(measured.kind) << " in " << measured.bytes;
    }
  }
}

}  // namespace
}  // namespace kvt
