#include "core/bounce_plan.h"

#include <algorithm>
#include <utility>

namespace kvt {
namespace {

constexpr std::uint64_t kChunkStep = std::uint64_t{64} << 10;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

std::uint64_t shape_of(const FragmentTable& table) {
  std::uint64_t hash = mixed(0xcbf29ce484222325ull, table.fragments().size());
  for (const Fragment& fragment : table.fragments()) hash = mixed(mixed(hash, fragment.bytes), fragment.count);
  return hash;
}

std::uint64_t packed_bytes(std::span<const PackedGroup> groups) {
  std::uint64_t bytes = 0;
  for (const PackedGroup& group : groups) {
    bytes += std::uint64_t{group.table->bytes_per_pair()} * group.slots.size();
  }
  return bytes;
}

PackedCursor::PackedCursor(std::span<const PackedGroup> groups, PackedSide side, std::uint64_t begin, std::uint64_t end)
    : groups_(groups),
      side_(side),
      begin_(begin),
      at_(begin),
      end_(std::max(begin, std::min(end, packed_bytes(groups)))),
      next_at_(begin) {
  seek(begin);
}

void PackedCursor::seek(std::uint64_t begin) {
  std::uint64_t left = begin;
  for (; group_ < groups_.size(); ++group_) {
    const PackedGroup& group = groups_[group_];
    const std::uint64_t group_bytes = std::uint64_t{group.table->bytes_per_pair()} * group.slots.size();
    if (left >= group_bytes) {
      left -= group_bytes;
      continue;
    }
    for (fragment_ = 0;; ++fragment_) {
      const Fragment& fragment = group.table->fragments()[fragment_];
      const std::uint64_t per_slot = fragment.bytes * fragment.count;
      if (left >= per_slot * group.slots.size()) {
        left -= per_slot * group.slots.size();
        continue;
      }
      slot_ = static_cast<std::size_t>(left / per_slot);
      piece_ = static_cast<std::size_t>(left % per_slot / fragment.bytes);
      skip_ = static_cast<std::size_t>(left % per_slot % fragment.bytes);
      return;
    }
  }
}

bool PackedCursor::produce(Piece* piece) {
  if (next_at_ >= end_) return false;
  while (true) {
    const PackedGroup& group = groups_[group_];
    if (group.slots.empty() || fragment_ == group.table->fragments().size()) {
      ++group_;
      fragment_ = 0;
      continue;
    }
    const Fragment& fragment = group.table->fragments()[fragment_];
    const auto slot = static_cast<std::size_t>(group.slots[slot_]);
    const bool is_source = side_ == PackedSide::kSource;
    const SlotPool& pool = is_source ? fragment.source : fragment.destination;
    piece->page = pool.base + slot * pool.slot_stride +
                  (is_source ? fragment.source_offset : fragment.destination_offset) +
                  piece_ * (is_source ? fragment.source_stride : fragment.destination_stride) + skip_;
    piece->offset = next_at_ - begin_;
    piece->bytes = static_cast<std::size_t>(std::min<std::uint64_t>(fragment.bytes - skip_, end_ - next_at_));
    next_at_ += piece->bytes;
    skip_ = 0;
    if (++piece_ == fragment.count) {
      piece_ = 0;
      if (++slot_ == group.slots.size()) {
        slot_ = 0;
        ++fragment_;
      }
    }
    return true;
  }
}

std::size_t PackedCursor::take(std::size_t max_pieces, std::size_t max_bytes, std::vector<Piece>* out) {
  std::size_t pieces = 0;
  std::size_t taken = 0;
  while (pieces < max_pieces && taken < max_bytes) {
    if (current_.bytes == 0 && !produce(&current_)) break;
    Piece piece = std::exchange(current_, Piece{});
    const std::size_t room = max_bytes - taken;
    while (piece.bytes < room && produce(&current_)) {
      if (piece.page + piece.bytes != current_.page) break;
      piece.bytes += current_.bytes;
      current_ = Piece{};
    }
    if (piece.bytes > room) {
      const std::size_t rest = piece.bytes - room;
      // What was joined last may leave nothing or something behind; either way the rest is contiguous.
      current_ = {piece.page + room, piece.offset + room, rest};
      piece.bytes = room;
    }
    out->push_back(piece);
    taken += piece.bytes;
    ++pieces;
  }
  at_ += taken;
  return taken;
}

std::vector<BounceRequestPlan> split_slice(std::span<const PlanGroup> groups) {
  std::vector<BounceRequestPlan> plans;
  for (const PlanGroup& group : groups) {
    if (group.table->bytes_per_pair() == 0) continue;
    const std::size_t pair_count = group.slot_pairs.size() / 2;
    for (std::size_t at = 0; at < pair_count;) {
      if (plans.empty() || plans.back().groups.size() == kMaxWantGroups ||
          plans.back().destination_slots.size() == kMaxWantSlots) {
        plans.emplace_back();
      }
      BounceRequestPlan& plan = plans.back();
      const std::size_t count = std::min(pair_count - at, kMaxWantSlots - plan.destination_slots.size());
      PackedGroup packed{group.table, {}};
      packed.slots.reserve(count);
      for (std::size_t i = at; i < at + count; ++i) {
        packed.slots.push_back(group.slot_pairs[2 * i]);
        plan.destination_slots.push_back(group.slot_pairs[2 * i + 1]);
      }
      plan.sources.push_back(std::move(packed));
      plan.groups.push_back({group.key, static_cast<std::uint32_t>(count), shape_of(*group.table)});
      plan.total_bytes += std::uint64_t{group.table->bytes_per_pair()} * count;
      at += count;
    }
  }
  return plans;
}

std::uint32_t choose_chunk_bytes(std::uint64_t total_bytes, std::uint64_t max_chunk, const ChunkSizing& sizing) {
  std::uint64_t chunk = std::max(sizing.smallest, total_bytes / sizing.per_request + 1);
  chunk = (chunk + kChunkStep - 1) / kChunkStep * kChunkStep;
  // Beyond 4 GiB no chunk size makes sense, and within it the sum of chunks stays countable.
  chunk = std::min({chunk, max_chunk, std::uint64_t{1} << 31, std::max<std::uint64_t>(total_bytes, 1)});
  return static_cast<std::uint32_t>(chunk);
}

bool has_descriptors(std::span<const PlanGroup> groups, std::uint64_t count) {
  PlanCursor cursor(std::vector<PlanGroup>(groups.begin(), groups.end()));
  std::vector<Run> runs;
  while (count > 0) {
    runs.clear();
    const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(count, 1024));
    if (cursor.take(some, static_cast<std::size_t>(-1), &runs) == 0) return false;
    count -= runs.size();
  }
  return true;
}

bool is_worth_bouncing(std::span<const PlanGroup> groups, const BounceThresholds& thresholds) {
  if (thresholds.rule == BounceRule::kAlways) return true;
  std::uint64_t bytes = 0;
  for (const PlanGroup& group : groups) {
    bytes += std::uint64_t{group.table->bytes_per_pair()} * (group.slot_pairs.size() / 2);
  }
  // At least so many, and so many that they are small on average.
  const std::uint64_t average = std::max<std::uint64_t>(thresholds.max_average_descriptor_bytes, 1);
  const std::uint64_t enough =
      std::max<std::uint64_t>({thresholds.min_descriptor_count, (bytes + average - 1) / average, 1});
  return has_descriptors(groups, enough);
}

}  // namespace kvt
