#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "core/bounce_plan.h"
#include "core/fragment_table.h"
#include "core/plan_cursor.h"

namespace kvt::test {

inline std::vector<PackedGroup> packed_sources(const std::vector<PlanGroup>& groups) {
  std::vector<PackedGroup> out;
  for (const PlanGroup& group : groups) {
    PackedGroup packed{group.table, {}};
    for (std::size_t i = 0; i < group.slot_pairs.size(); i += 2) packed.slots.push_back(group.slot_pairs[i]);
    out.push_back(std::move(packed));
  }
  return out;
}

// Source and destination pools in real memory, and tables between them of every kind: whole slots, parts, strided
// pieces.
class World {
 public:
  static constexpr std::size_t kSlotBytes = 240;
  static constexpr std::size_t kStride = 256;

  World(std::mt19937* random, std::int32_t slot_count)
      : slot_count_(slot_count),
        source_(kStride * static_cast<std::size_t>(slot_count)),
        destination_(kStride * static_cast<std::size_t>(slot_count)) {
    for (std::uint8_t& byte : source_) byte = static_cast<std::uint8_t>((*random)());
    for (std::uint8_t& byte : destination_) byte = 0xee;
    original_ = source_;
    tables_.push_back(table({piece(0, 0, kSlotBytes, 1, 0, 0)}));
    tables_.push_back(table({piece(1, 3, 17, 4, 40, 23), piece(200, 100, 9, 1, 0, 0)}));
    tables_.push_back(table({piece(0, 120, 60, 2, 120, 60), piece(60, 0, 60, 2, 120, 60)}));
    tables_.push_back(table({piece(5, 5, 100, 1, 0, 0), piece(105, 105, 100, 1, 0, 0), piece(230, 220, 3, 2, 5, 7)}));
  }

  const std::vector<std::shared_ptr<const FragmentTable>>& tables() const { return tables_; }
  std::shared_ptr<const FragmentTable> whole_slot_table() {
    Fragment whole = piece(0, 0, kStride, 1, 0, 0);
    whole.source.slot_bytes = whole.destination.slot_bytes = kStride;
    return table({whole});
  }
  std::vector<std::uint8_t>& source() { return source_; }
  // Of the source as it was made.
  std::uint8_t original(std::uintptr_t address) const {
    return original_[address - reinterpret_cast<std::uintptr_t>(source_.data())];
  }
  std::vector<std::uint8_t>& destination() { return destination_; }
  std::int32_t slot_count() const { return slot_count_; }

  // Groups of random tables over distinct destination slots; at most `pairs` pairs in each. Keys are 10, 11, ...
  std::vector<PlanGroup> random_slice(std::mt19937* random, std::size_t group_count, std::size_t pairs) {
    std::vector<std::int32_t> slots(static_cast<std::size_t>(slot_count_));
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<PlanGroup> groups;
    for (std::size_t g = 0; g < group_count; ++g) {
      std::shuffle(slots.begin(), slots.end(), *random);
      PlanGroup group{tables_[(*random)() % tables_.size()], {}, static_cast<std::uint32_t>(10 + g)};
      const std::size_t count = std::min(1 + (*random)() % pairs, slots.size());
      for (std::size_t i = 0; i < count; ++i) {
        group.slot_pairs.push_back(static_cast<std::int32_t>((*random)() % static_cast<unsigned>(slot_count_)));
        group.slot_pairs.push_back(slots[i]);
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  Fragment piece(std::size_t from, std::size_t to, std::size_t bytes, std::size_t count, std::size_t from_stride,
                 std::size_t to_stride) {
    Fragment fragment;
    fragment.source = {reinterpret_cast<std::uintptr_t>(source_.data()), kSlotBytes, kStride, slot_count_};
    fragment.destination = {reinterpret_cast<std::uintptr_t>(destination_.data()), kSlotBytes, kStride, slot_count_};
    fragment.source_offset = from;
    fragment.destination_offset = to;
    fragment.bytes = bytes;
    fragment.count = count;
    fragment.source_stride = from_stride;
    fragment.destination_stride = to_stride;
    return fragment;
  }
  static std::shared_ptr<const FragmentTable> table(const std::vector<Fragment>& fragments) {
    auto made = std::make_shared<FragmentTable>();
    const Status status = FragmentTable::create(fragments, made.get());
    EXPECT_TRUE(status.is_ok()) << status.message();
    return made;
  }

  std::int32_t slot_count_;
  std::vector<std::uint8_t> source_;
  std::vector<std::uint8_t> original_;
  std::vector<std::uint8_t> destination_;
  std::vector<std::shared_ptr<const FragmentTable>> tables_;
};

}  // namespace kvt::test
