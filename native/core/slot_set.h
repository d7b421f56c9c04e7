#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvt {

// Role: which slots of a pool are in it. A WANT names hundreds, and each is asked for.
// Why two forms: a bit for each slot answers in a nanosecond, where a search in a large set takes a hundred; a few
// slots
//   of a large pool are not worth the bits.
class SlotSet {
 public:
  SlotSet() = default;
  explicit SlotSet(std::vector<std::int32_t> slots) : sorted_(std::move(slots)) {
    std::sort(sorted_.begin(), sorted_.end());
    if (sorted_.empty()) return;
    const auto range = static_cast<std::size_t>(std::int64_t{sorted_.back()} - sorted_.front()) + 1;
    if (range > kMostBitsPerSlot * sorted_.size()) return;
    bits_.resize(range);
    for (const std::int32_t slot : sorted_) bits_[index_of(slot)] = true;
  }

  bool contains(std::int32_t slot) const {
    if (sorted_.empty() || slot < sorted_.front() || slot > sorted_.back()) return false;
    return bits_.empty() ? std::binary_search(sorted_.begin(), sorted_.end(), slot) : bits_[index_of(slot)];
  }
  bool is_empty() const { return sorted_.empty(); }
  // Of a set that is not empty.
  std::int32_t lowest() const { return sorted_.front(); }
  std::int32_t highest() const { return sorted_.back(); }

 private:
  // Then the bits take no more memory than the slots.
  static constexpr std::size_t kMostBitsPerSlot = 32;
  std::size_t index_of(std::int32_t slot) const {
    return static_cast<std::size_t>(std::int64_t{slot} - sorted_.front());
  }

  std::vector<std::int32_t> sorted_;
  std::vector<bool> bits_;
};

}  // namespace kvt
