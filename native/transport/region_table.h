#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/region_set.h"
#include "transport/transport.h"

namespace kvt {

// The memory of one agent, looked up by address: what RegionSet knows, with the kind and device of each region.
class RegionTable {
 public:
  // False when the region is empty, wraps around the address space or overlaps another.
  bool add(const Region& region) {
    if (!set_.add({region.base, region.size})) return false;
    regions_.push_back(region);
    return true;
  }

  // The region that holds all of [address, address + size), or null. Valid until the next add.
  const Region* find(std::uintptr_t address, std::size_t size) const {
    const std::size_t index = set_.find(address, size);
    return index == RegionSet::kNone ? nullptr : &regions_[index];
  }

  bool overlaps(const Region& region) const {
    return std::any_of(regions_.begin(), regions_.end(), [&region](const Region& known) {
      return region.base < known.base + known.size && known.base < region.base + region.size;
    });
  }

  const std::vector<Region>& all() const { return regions_; }

 private:
  RegionSet set_;
  std::vector<Region> regions_;  // by the set's indices
};

}  // namespace kvt
