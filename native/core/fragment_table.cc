#include "core/fragment_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvt {
namespace {

Status check_side(const char* side, std::size_t index, const SlotPool& pool, const Fragment& fragment,
                  std::size_t offset, std::size_t stride) {
  const auto fail = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "fragment " + std::to_string(index) + ", " + side + ": " + what);
  };
  if (pool.slot_count < 1) return fail("the pool has no slots");
  if (pool.slot_bytes > pool.slot_stride) return fail("slotBytes is larger than slotStride");
  std::size_t pool_bytes = 0;
  std::uintptr_t pool_end = 0;
  if (__builtin_mul_overflow(pool.slot_stride, static_cast<std::size_t>(pool.slot_count), &pool_bytes) ||
      __builtin_add_overflow(pool.base, pool_bytes, &pool_end)) {
    return fail("the pool does not fit into the address space");
  }
  if (fragment.count > 1 && stride < fragment.bytes) return fail("pieces overlap: the stride is below the piece size");
  std::size_t end = 0;
  if (__builtin_mul_overflow(fragment.count - 1, stride, &end) || __builtin_add_overflow(end, offset, &end) ||
      __builtin_add_overflow(end, fragment.bytes, &end) || end > pool.slot_bytes) {
    return fail("pieces leave the slot of " + std::to_string(pool.slot_bytes) + " bytes (offset " +
                std::to_string(offset) + ", " + std::to_string(fragment.count) + " pieces of " +
                std::to_string(fragment.bytes) + " bytes every " + std::to_string(stride) + ")");
  }
  return Status::ok();
}

// Pieces that touch on both sides are one piece.
Fragment joined_pieces(Fragment fragment) {
  if (fragment.count > 1 && fragment.source_stride == fragment.bytes && fragment.destination_stride == fragment.bytes) {
    fragment.bytes *= fragment.count;
    fragment.count = 1;
  }
  return fragment;
}

// The largest power of two up to 16 that divides whatever was or-ed together.
unsigned alignment_of(std::uint64_t combined) {
  return static_cast<unsigned>((combined | 16) & (~(combined | 16) + 1));
}

PieceTraits traits_of(const std::vector<Fragment>& fragments) {
  std::uint64_t combined = 0;
  std::uint64_t apart = 0;
  std::uint64_t bytes = 0;
  std::uint64_t pieces = 0;
  for (const Fragment& fragment : fragments) {
    const std::uint64_t source = fragment.source.base + fragment.source_offset;
    const std::uint64_t destination = fragment.destination.base + fragment.destination_offset;
    // Either side takes any slot, whatever the other takes.
    const std::uint64_t slots = fragment.source.slot_stride | fragment.destination.slot_stride;
    combined |= source | destination | slots | fragment.bytes;
    apart |= (source ^ destination) | slots;
    if (fragment.count > 1) {
      combined |= fragment.source_stride | fragment.destination_stride;
      apart |= fragment.source_stride ^ fragment.destination_stride;
    }
    bytes += fragment.bytes * fragment.count;
    pieces += fragment.count;
  }
  return {alignment_of(combined), alignment_of(apart), pieces == 0 ? 0 : bytes / pieces};
}

bool continues(const Fragment& first, const Fragment& second) {
  return first.count == 1 && second.count == 1 && first.source == second.source &&
         first.destination == second.destination && first.source_offset + first.bytes == second.source_offset &&
         first.destination_offset + first.bytes == second.destination_offset;
}

}  // namespace

void PieceTraits::add(const PieceTraits& other) {
  if (other.mean_piece_bytes == 0) return;
  alignment = std::min(alignment, other.alignment);
  common_word = std::min(common_word, other.common_word);
  mean_piece_bytes =
      mean_piece_bytes == 0 ? other.mean_piece_bytes : std::min(mean_piece_bytes, other.mean_piece_bytes);
}

Status FragmentTable::create(const std::vector<Fragment>& fragments, FragmentTable* out) {
  FragmentTable table;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const Fragment& fragment = fragments[i];
    if (fragment.bytes == 0 || fragment.count == 0) {
      return Status(StatusCode::kInvalidArgument, "fragment " + std::to_string(i) + " has no bytes");
    }
    Status checked = check_side("source", i, fragment.source, fragment, fragment.source_offset, fragment.source_stride);
    if (!checked.is_ok()) return checked;
    checked = check_side("destination", i, fragment.destination, fragment, fragment.destination_offset,
                         fragment.destination_stride);
    if (!checked.is_ok()) return checked;

    table.source_slot_limit_ = std::min(table.source_slot_limit_, fragment.source.slot_count);
    table.destination_slot_limit_ = std::min(table.destination_slot_limit_, fragment.destination.slot_count);
    table.bytes_per_pair_ += fragment.bytes * fragment.count;
    const Fragment joined = joined_pieces(fragment);
    if (!table.fragments_.empty() && continues(table.fragments_.back(), joined)) {
      table.fragments_.back().bytes += joined.bytes;
    } else {
      table.fragments_.push_back(joined);
    }
  }
  table.traits_ = traits_of(table.fragments_);
  *out = std::move(table);
  return Status::ok();
}

}  // namespace kvt
