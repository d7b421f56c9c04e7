#include "core/credit_scheduler.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

namespace kvt {

Status CreditScheduler::create(const CreditLimits& limits, CreditScheduler* out) {
  if (limits.max_chunk == 0 || limits.max_held_per_flow == 0) {
    return Status(StatusCode::kInvalidArgument, "maxChunkSize and maxInflightChunksPerRequest must be at least 1");
  }
  const std::uint64_t unit = std::max(std::bit_ceil(limits.max_chunk), limits.min_block);
  if (limits.max_chunk > limits.arena_bytes || limits.arena_bytes / unit < 2) {
    return Status(StatusCode::kInvalidArgument,
                  "a bounce arena of " + std::to_string(limits.arena_bytes) + " bytes is too small for chunks of " +
                      std::to_string(limits.max_chunk) +
                      ": it must hold two of them (one that comes, one that goes), each rounded up to a power of two; "
                      "raise kvCacheBounceSizeMb or lower bounce.maxChunkSize");
  }
  CreditScheduler made;
  made.limits_ = limits;
  Status status = BuddyAllocator::create(limits.arena_bytes, limits.min_block, unit, &made.arena_);
  if (!status.is_ok()) return status;
  const std::uint64_t units = made.arena_.capacity() / unit;
  const std::uint64_t last = made.arena_.capacity() - unit;
  const std::uint64_t staging_begin = made.arena_.capacity() - units / 2 * unit;
  made.grants_ = {0, last};
  made.staging_ = {staging_begin, made.arena_.capacity()};
  made.staging_ahead_ = {staging_begin, last};
  *out = std::move(made);
  return Status::ok();
}

void CreditScheduler::push(FlowId flow, ItemId item, std::uint32_t count, std::uint64_t chunk_bytes,
                           std::uint64_t last_bytes) {
  Flow& entry = flows_[flow];
  if (entry.items.empty()) {
    ring_.push_back(flow);
    entry.place = std::prev(ring_.end());
  }
  entry.items.push_back({item, 0, count, chunk_bytes, last_bytes});
  waiting_ += count;
}

void CreditScheduler::leave_ring(FlowId id, Flow* flow) {
  ring_.erase(flow->place);
  flow->missed_at.reset();
  if (drain_ && drain_->flow == id) drain_.reset();
  if (flow->held == 0) flows_.erase(id);
}

void CreditScheduler::remove(FlowId flow, ItemId item) {
  const auto entry = flows_.find(flow);
  if (entry == flows_.end() || entry->second.items.empty()) return;
  std::deque<Item>& items = entry->second.items;
  const auto at = std::find_if(items.begin(), items.end(), [item](const Item& one) { return one.id == item; });
  if (at == items.end()) return;
  if (at == items.begin()) {
    entry->second.missed_at.reset();
    if (drain_ && drain_->flow == flow) drain_.reset();
  }
  waiting_ -= at->count - at->next;
  items.erase(at);
  if (items.empty()) leave_ring(flow, &entry->second);
}

std::optional<CreditScheduler::Credit> CreditScheduler::grant_head(FlowId id, Flow* flow) {
  Item& item = flow->items.front();
  const std::uint64_t bytes = item.next + 1 == item.count ? item.last_bytes : item.chunk_bytes;
  const std::optional<std::uint64_t> offset = arena_.allocate(bytes, grants_, BuddyAllocator::Side::kLow);
  if (!offset) return std::nullopt;
  const Credit credit{id, item.id, item.next, *offset, bytes};
  flow->missed_at.reset();
  ++flow->held;
  ++granted_;
  --waiting_;
  if (++item.next == item.count) {
    flow->items.pop_front();
    if (flow->items.empty()) {
      leave_ring(id, flow);
      return credit;
    }
  }
  ring_.splice(ring_.end(), ring_, flow->place);
  return credit;
}

std::optional<CreditScheduler::Credit> CreditScheduler::next(BounceTime now) {
  if (drain_) {
    Flow& flow = flows_.at(drain_->flow);
    if (std::optional<Credit> credit = grant_head(drain_->flow, &flow)) {
      drain_.reset();
      return credit;
    }
    if (now < drain_->until) return std::nullopt;
    flow.missed_at = granted_;
    drain_.reset();
  }
  for (std::size_t turns = ring_.size(); turns > 0; --turns) {
    const FlowId id = ring_.front();
    Flow& flow = flows_.at(id);
    if (flow.held < limits_.max_held_per_flow) {
      if (std::optional<Credit> credit = grant_head(id, &flow)) return credit;
      if (!flow.missed_at) flow.missed_at = granted_;
      if (granted_ - *flow.missed_at >= std::max<std::uint64_t>(8, 2 * ring_.size())) {
        drain_ = Drain{id, now + limits_.drain_limit};
        return std::nullopt;
      }
    }
    ring_.splice(ring_.end(), ring_, ring_.begin());
  }
  return std::nullopt;
}

bool CreditScheduler::has_room(std::uint64_t bytes) {
  const std::optional<std::uint64_t> offset = arena_.allocate(bytes, grants_, BuddyAllocator::Side::kLow);
  if (offset) (void)arena_.release(*offset);
  return offset.has_value();
}

std::optional<BounceTime> CreditScheduler::drain_until() const {
  return drain_ ? std::optional(drain_->until) : std::nullopt;
}

Status CreditScheduler::release(FlowId flow, std::uint64_t offset) {
  Status status = arena_.release(offset);
  if (status.is_ok()) set_aside(flow);
  return status;
}

void CreditScheduler::set_aside(FlowId flow) {
  const auto entry = flows_.find(flow);
  if (entry == flows_.end() || entry->second.held == 0) return;
  if (--entry->second.held == 0 && entry->second.items.empty()) flows_.erase(entry);
}

std::optional<std::uint64_t> CreditScheduler::stage(std::uint64_t bytes, StagingKind kind) {
  return arena_.allocate(bytes, kind == StagingKind::kGranted ? staging_ : staging_ahead_, BuddyAllocator::Side::kHigh);
}

}  // namespace kvt
