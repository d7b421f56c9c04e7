#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/status.h"

namespace kvt {

// Role: hands out offsets of an arena in blocks of powers of two.
// Why: chunks come in few sizes and leave in any order; blocks that split and join again keep the arena usable for the
//   largest chunk without ever moving a byte.
// Invariant: no block is larger than `max_block`, so an arena is a row of units of that size and what happens in one
//   unit never depends on another.
class BuddyAllocator {
 public:
  // Part of the arena, in bytes; both ends multiples of max_block.
  struct Window {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  enum class Side : std::uint8_t { kLow, kHigh };

  BuddyAllocator() = default;
  // kInvalidArgument unless both block sizes are powers of two and min_block <= max_block <= arena_bytes. What is left
  // of the arena after the last whole unit is not used.
  static Status create(std::uint64_t arena_bytes, std::uint64_t min_block, std::uint64_t max_block,
                       BuddyAllocator* out);

  // Offset of a block of at least `bytes` bytes inside the window, of the smallest size that is there and then as far
  // to that side as possible. Nothing when none fits, or when bytes is 0 or above max_block.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes, Window window, Side side);

  // kInvalidArgument: not the beginning of a block of this arena; kState: that place is free already.
  Status release(std::uint64_t offset);

  // The size of the block that allocate takes for so many bytes.
  std::uint64_t block_bytes(std::uint64_t bytes) const;
  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t max_block() const { return max_block_; }
  std::uint64_t used() const { return used_; }
  std::size_t block_count() const { return blocks_.size(); }

 private:
  std::uint64_t size_of(std::size_t order) const { return min_block_ << order; }
  std::size_t order_of(std::uint64_t bytes) const;

  std::uint64_t capacity_ = 0;
  std::uint64_t min_block_ = 0;
  std::uint64_t max_block_ = 0;
  std::uint64_t used_ = 0;
  std::vector<std::set<std::uint64_t>> free_;    // by order
  std::map<std::uint64_t, std::size_t> blocks_;  // handed out: offset, order
};

}  // namespace kvt
