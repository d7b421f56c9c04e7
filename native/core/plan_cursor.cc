#include "core/plan_cursor.h"

#include <algorithm>
#include <utility>

namespace kvt {

PlanCursor::PlanCursor(std::vector<PlanGroup> groups) : groups_(std::move(groups)) {
  for (const PlanGroup& group : groups_) {
    bytes_left_ += static_cast<std::uint64_t>(group.table->bytes_per_pair()) * (group.slot_pairs.size() / 2);
  }
}

void PlanCursor::finish() {
  group_ = groups_.size();
  current_ = {};
  next_ = {};
  bytes_left_ = 0;
}

bool PlanCursor::produce(Run* piece) {
  while (group_ < groups_.size()) {
    const PlanGroup& group = groups_[group_];
    const std::vector<Fragment>& fragments = group.table->fragments();
    if (group.slot_pairs.empty() || fragment_ == fragments.size()) {
      ++group_;
      fragment_ = 0;
      continue;
    }
    const Fragment& fragment = fragments[fragment_];
    const auto source_slot = static_cast<std::size_t>(group.slot_pairs[pair_]);
    const auto destination_slot = static_cast<std::size_t>(group.slot_pairs[pair_ + 1]);
    piece->source = fragment.source.base + source_slot * fragment.source.slot_stride + fragment.source_offset +
                    piece_ * fragment.source_stride;
    piece->destination = fragment.destination.base + destination_slot * fragment.destination.slot_stride +
                         fragment.destination_offset + piece_ * fragment.destination_stride;
    piece->bytes = fragment.bytes;
    if (++piece_ == fragment.count) {
      piece_ = 0;
      pair_ += 2;
      if (pair_ >= group.slot_pairs.size()) {
        pair_ = 0;
        ++fragment_;
      }
    }
    return true;
  }
  return false;
}

bool PlanCursor::peek() { return next_.bytes != 0 || produce(&next_); }

std::size_t PlanCursor::take(std::size_t max_runs, std::size_t max_bytes, std::vector<Run>* out) {
  std::size_t runs = 0;
  std::size_t taken = 0;
  while (runs < max_runs && taken < max_bytes) {
    if (current_.bytes == 0) {
      if (!peek()) break;
      current_ = std::exchange(next_, Run{});
    }
    const std::size_t room = max_bytes - taken;
    // Joining stops at a piece boundary, so that the end of a batch does not leave scraps of pages.
    while (current_.bytes < room && peek() && next_.bytes <= room - current_.bytes &&
           current_.source + current_.bytes == next_.source &&
           current_.destination + current_.bytes == next_.destination) {
      current_.bytes += next_.bytes;
      next_ = Run{};
    }
    if (current_.bytes > room && runs > 0) break;
    const std::size_t bytes = std::min(current_.bytes, room);
    out->push_back({current_.source, current_.destination, bytes});
    current_ = {current_.source + bytes, current_.destination + bytes, current_.bytes - bytes};
    taken += bytes;
    ++runs;
  }
  bytes_left_ -= taken;
  return taken;
}

}  // namespace kvt
