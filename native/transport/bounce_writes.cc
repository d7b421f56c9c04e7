#include "transport/bounce_writes.h"

#include <algorithm>
#include <utility>

namespace kvt {

void BounceWrites::add(BounceChunk id, PeerId peer, const Run& run) {
  writes_.push_back({.id = id, .peer = peer, .left = run, .error = {}});
}

void BounceWrites::note_failure(BatchId batch, Place write, BatchResult result) {
  if (result.may_still_land) {
    undrained_.emplace(batch, write);
    ++write->undrained;
    write->may_still_land = true;
  }
  // The first failure is the one that explains the rest.
  if (write->error.is_ok()) write->error = std::move(result.error);
  write->left.bytes = 0;
}

void BounceWrites::settle(Place write, std::vector<Ended>* out) {
  if (write->left.bytes > 0 || write->in_flight > 0) return;
  // It may have drained while other pieces of it were still running.
  const bool has_drained = write->undrained == 0;
  out->push_back({write->id, write->error, write->may_still_land, has_drained});
  if (has_drained) writes_.erase(write);
}

void BounceWrites::poll(std::vector<Ended>* out) {
  std::vector<BatchId> ids;
  for (const auto& [id, write] : batches_) ids.push_back(id);
  for (const BatchId id : ids) {
    BatchResult result = base_->poll(id);
    if (result.state == BatchState::kInFlight) continue;
    const Place write = batches_.at(id);
    batches_.erase(id);
    const auto count = in_flight_.find(write->peer);
    if (--count->second == 0) in_flight_.erase(count);
    --write->in_flight;
    if (result.state == BatchState::kFailed) note_failure(id, write, std::move(result));
    settle(write, out);
  }
}

bool BounceWrites::post(const std::function<bool(PeerId)>& is_reachable, std::vector<Ended>* out) {
  bool has_posted = false;
  for (std::size_t turns = writes_.size(); turns > 0; --turns) {
    const Place write = writes_.begin();
    writes_.splice(writes_.end(), writes_, write);
    if (write->left.bytes == 0) continue;
    if (!is_reachable(write->peer)) {
      write->left.bytes = 0;
      if (write->error.is_ok()) write->error = Status(StatusCode::kPeerLost, "the peer is gone");
      settle(write, out);
      continue;
    }
    while (write->left.bytes > 0) {
      const auto busy = in_flight_.find(write->peer);
      if (busy != in_flight_.end() && busy->second >= limits_.max_in_flight) break;
      const Run run{write->left.source, write->left.destination, std::min(write->left.bytes, limits_.max_bytes)};
      const BatchId id = ++last_batch_;
      BatchResult result = base_->post(id, write->peer, {&run, 1});
      write->left = {run.source + run.bytes, run.destination + run.bytes, write->left.bytes - run.bytes};
      has_posted = true;
      if (result.state == BatchState::kInFlight) {
        ++in_flight_[write->peer];
        ++write->in_flight;
        batches_.emplace(id, write);
        continue;
      }
      if (result.state == BatchState::kFailed) note_failure(id, write, std::move(result));
      settle(write, out);
      return true;
    }
  }
  return has_posted;
}

void BounceWrites::collect_drained(std::vector<BounceChunk>* drained, std::vector<BatchId>* others) {
  std::vector<BatchId> ids;
  base_->take_drained(&ids);
  for (const BatchId id : ids) {
    const auto entry = undrained_.find(id);
    if (entry == undrained_.end()) {
      others->push_back(id);
      continue;
    }
    const Place write = entry->second;
    undrained_.erase(entry);
    if (--write->undrained > 0 || write->in_flight > 0 || write->left.bytes > 0) continue;
    drained->push_back(write->id);
    writes_.erase(write);
  }
}

bool BounceWrites::can_post() const {
  return std::any_of(writes_.begin(), writes_.end(),
                     [this](const Write& write) { return write.left.bytes > 0 && !in_flight_.contains(write.peer); });
}

}  // namespace kvt
