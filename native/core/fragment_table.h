#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/status.h"

namespace kvt {

// One array of equally sized page slots: address(slot) = base + slot * slot_stride.
struct SlotPool {
  std::uintptr_t base = 0;
  std::size_t slot_bytes = 0;
  std::size_t slot_stride = 0;
  std::int32_t slot_count = 0;

  bool operator==(const SlotPool&) const = default;
};

// `count` pieces of `bytes` bytes inside one slot; piece i lies at offset + i * stride on each side.
struct Fragment {
  SlotPool source;
  SlotPool destination;
  std::size_t source_offset = 0;
  std::size_t destination_offset = 0;
  std::size_t bytes = 0;
  std::size_t count = 0;
  std::size_t source_stride = 0;
  std::size_t destination_stride = 0;
};

// What decides how fast a table's pieces are copied, whichever slots it is applied to.
struct PieceTraits {
  // The largest power of two up to 16 that divides every address, stride and size.
  unsigned alignment = 16;
  // The same of how far the two sides of a piece are apart: the widest word that one access can take over on both.
  unsigned common_word = 16;
  // Mean bytes of a piece; of several tables together the smallest of their means. 0: there is no piece.
  std::uint64_t mean_piece_bytes = 0;

  // As if the pieces of both were one slice's.
  void add(const PieceTraits& other);
  bool operator==(const PieceTraits&) const = default;
};

// Role: what one pair of slots moves, checked once, so that expanding a slice needs no check per piece.
// Invariant: every piece lies inside its slot and every slot inside the address space.
// Threading: immutable after create.
class FragmentTable {
 public:
  // kInvalidArgument names the fragment and the rule it breaks. Whether the pools lie in registered memory is the
  // caller's to check. Pieces and fragments that touch on both sides become one, so the table may be shorter.
  static Status create(const std::vector<Fragment>& fragments, FragmentTable* out);

  const std::vector<Fragment>& fragments() const { return fragments_; }
  std::size_t bytes_per_pair() const { return bytes_per_pair_; }
  const PieceTraits& traits() const { return traits_; }
  // A slot below the limit exists in every pool of that side.
  std::int32_t source_slot_limit() const { return source_slot_limit_; }
  std::int32_t destination_slot_limit() const { return destination_slot_limit_; }

 private:
  std::vector<Fragment> fragments_;
  std::size_t bytes_per_pair_ = 0;
  PieceTraits traits_;
  std::int32_t source_slot_limit_ = std::numeric_limits<std::int32_t>::max();
  std::int32_t destination_slot_limit_ = std::numeric_limits<std::int32_t>::max();
};

}  // namespace kvt
