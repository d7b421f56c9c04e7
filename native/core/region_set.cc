#include "core/region_set.h"

#include <algorithm>

namespace kvt {

bool RegionSet::add(MemoryRange range) {
  std::uintptr_t end = 0;
  if (range.size == 0 || __builtin_add_overflow(range.base, range.size, &end)) return false;
  const auto at = std::lower_bound(by_base_.begin(), by_base_.end(), range.base,
                                   [this](std::size_t i, std::uintptr_t base) { return ranges_[i].base < base; });
  if (at != by_base_.end() && ranges_[*at].base < end) return false;
  if (at != by_base_.begin()) {
    const MemoryRange& before = ranges_[*(at - 1)];
    if (before.base + before.size > range.base) return false;
  }
  by_base_.insert(at, ranges_.size());
  ranges_.push_back(range);
  return true;
}

std::size_t RegionSet::find(std::uintptr_t address, std::size_t size) const {
  const auto above = std::upper_bound(by_base_.begin(), by_base_.end(), address,
                                      [this](std::uintptr_t a, std::size_t i) { return a < ranges_[i].base; });
  if (above == by_base_.begin()) return kNone;
  const std::size_t index = *(above - 1);
  const MemoryRange& range = ranges_[index];
  const std::size_t offset = address - range.base;
  if (offset > range.size || size > range.size - offset) return kNone;
  return index;
}

}  // namespace kvt
