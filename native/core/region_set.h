#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvt {

// A range of addresses, in whichever address space its user means.
struct MemoryRange {
  std::uintptr_t base = 0;
  std::size_t size = 0;
};

// Role: answers whether bytes lie inside memory that was registered. Ranges never overlap and never shrink.
class RegionSet {
 public:
  // False when the range is empty, wraps around the address space or overlaps one that is there; nothing changes then.
  bool add(MemoryRange range);

  // Index (in order of addition) of the one range that contains [address, address + size), or kNone. A range that two
  // adjacent regions share is not contained: they may be mapped apart from each other elsewhere.
  std::size_t find(std::uintptr_t address, std::size_t size) const;
  bool contains(std::uintptr_t address, std::size_t size) const { return find(address, size) != kNone; }

  const std::vector<MemoryRange>& ranges() const { return ranges_; }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

 private:
  std::vector<MemoryRange> ranges_;
  std::vector<std::size_t> by_base_;  // indices into ranges_, ascending base
};

}  // namespace kvt
