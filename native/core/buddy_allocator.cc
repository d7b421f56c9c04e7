#include "core/buddy_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

namespace kvt {

Status BuddyAllocator::create(std::uint64_t arena_bytes, std::uint64_t min_block, std::uint64_t max_block,
                              BuddyAllocator* out) {
  if (!std::has_single_bit(min_block) || !std::has_single_bit(max_block) || min_block > max_block) {
    return Status(StatusCode::kInvalidArgument, "block sizes must be powers of two, the smallest first");
  }
  if (max_block > arena_bytes) {
    return Status(StatusCode::kInvalidArgument, "an arena of " + std::to_string(arena_bytes) +
                                                    " bytes holds no block of " + std::to_string(max_block));
  }
  BuddyAllocator made;
  made.capacity_ = arena_bytes / max_block * max_block;
  made.min_block_ = min_block;
  made.max_block_ = max_block;
  made.free_.resize(made.order_of(max_block) + 1);
  for (std::uint64_t at = 0; at < made.capacity_; at += max_block) made.free_.back().insert(at);
  *out = std::move(made);
  return Status::ok();
}

std::size_t BuddyAllocator::order_of(std::uint64_t bytes) const {
  const std::uint64_t size = std::max(std::bit_ceil(bytes), min_block_);
  return static_cast<std::size_t>(std::countr_zero(size) - std::countr_zero(min_block_));
}

std::uint64_t BuddyAllocator::block_bytes(std::uint64_t bytes) const { return size_of(order_of(bytes)); }

std::optional<std::uint64_t> BuddyAllocator::allocate(std::uint64_t bytes, Window window, Side side) {
  if (bytes == 0 || bytes > max_block_) return std::nullopt;
  const std::size_t wanted = order_of(bytes);
  for (std::size_t order = wanted; order < free_.size(); ++order) {
    std::set<std::uint64_t>& blocks = free_[order];
    // The window ends between units, so a block is inside it or outside, never across.
    const auto first = blocks.lower_bound(window.begin);
    const auto last = blocks.lower_bound(window.end);
    if (first == last) continue;
    const auto chosen = side == Side::kLow ? first : std::prev(last);
    std::uint64_t offset = *chosen;
    blocks.erase(chosen);
    while (order > wanted) {
      --order;
      const std::uint64_t upper = offset + size_of(order);
      free_[order].insert(side == Side::kLow ? upper : offset);
      if (side == Side::kHigh) offset = upper;
    }
    blocks_.emplace(offset, wanted);
    used_ += size_of(wanted);
    return offset;
  }
  return std::nullopt;
}

Status BuddyAllocator::release(std::uint64_t offset) {
  const auto block = blocks_.find(offset);
  if (block == blocks_.end()) {
    const auto above = blocks_.upper_bound(offset);
    const bool is_inside =
        above != blocks_.begin() && offset - std::prev(above)->first < size_of(std::prev(above)->second);
    if (offset >= capacity_ || offset % min_block_ != 0 || is_inside) {
      return Status(StatusCode::kInvalidArgument, "no block of the arena begins at " + std::to_string(offset));
    }
    return Status(StatusCode::kState, "the arena's place " + std::to_string(offset) + " is free already");
  }
  std::size_t order = block->second;
  blocks_.erase(block);
  used_ -= size_of(order);
  while (order + 1 < free_.size()) {
    const auto buddy = free_[order].find(offset ^ size_of(order));
    if (buddy == free_[order].end()) break;
    offset = std::min(offset, *buddy);
    free_[order].erase(buddy);
    ++order;
  }
  free_[order].insert(offset);
  return Status::ok();
}

}  // namespace kvt
