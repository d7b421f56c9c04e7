#include "transport/p2p_batches.h"

#include <string>
#include <utility>

namespace kvt {

Status P2pBatches::open(const std::shared_ptr<const CudaContext>& context) {
  context_ = context;
  buffers_.emplace(context);
  words_.emplace(context);
  for (Lane* lane : {&ready_[0], &ready_[1], &waiting_}) {
    Status status = CudaStream::create(context, StreamPriority::kLow, &lane->stream);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

P2pBatches::Lane& P2pBatches::ready() {
  const std::size_t other = 1 - last_ready_;
  return ready_[other].order.size() <= ready_[last_ready_].order.size() ? ready_[other] : ready_[last_ready_];
}

Status P2pBatches::share_blocks(unsigned most, Queued* batch, unsigned* blocks) {
  const bool is_first = batch->lane == &ready_[0];
  batch->is_alone = ready_depth() == 0 || most < 2;
  *blocks = batch->is_alone ? most : (is_first ? most - most / 2 : most / 2);
  const auto alone = alone_ ? batches_.find(*alone_) : batches_.end();
  Status status;
  if (alone != batches_.end() && alone->second.queued.lane != batch->lane) {
    status = alone->second.queued.done.wait_on(batch->lane->stream);
    alone_.reset();
  }
  return status;
}

Status P2pBatches::take_event(CudaEvent* out) {
  if (spare_events_.empty()) return CudaEvent::create(context_, EventTiming::kOff, out);
  *out = std::move(spare_events_.back());
  spare_events_.pop_back();
  return Status::ok();
}

Status P2pBatches::begin(Queued* batch) {
  Status status = words_->take(&batch->word);
  CudaEvent event;
  if (status.is_ok()) status = take_event(&event);
  if (status.is_ok()) batch->done = StreamMark(std::move(event));
  return status;
}

void P2pBatches::drop(Queued batch) { free(std::move(batch)); }

void P2pBatches::drop_after(Queued batch, const CudaStream& stream) {
  batch.done.set(stream);
  dropped_.push_back(std::move(batch));
}

void P2pBatches::free(Queued batch) {
  if (batch.slots.size() > 0) buffers_->give_back(std::move(batch.slots));
  if (batch.word != nullptr) words_->give_back(batch.word);
  if (batch.done.is_open()) spare_events_.push_back(batch.done.take_event());
}

BatchResult P2pBatches::queued(BatchId id, Queued batch, Status error) {
  batch.done.set(batch.lane->stream);
  batch.lane->order.push_back(id);
  if (batch.lane != &waiting_) last_ready_ = batch.lane == &ready_[0] ? 0 : 1;
  if (batch.is_alone) alone_ = id;
  const bool is_whole = error.is_ok();
  batches_.emplace(id, Batch{.queued = std::move(batch), .error = std::move(error)});
  // The part that was queued is of no use.
  if (!is_whole) cancel(id);
  return {BatchState::kInFlight, false, {}};
}

BatchResult P2pBatches::failed(const Batch& batch) {
  if (!batch.error.is_ok()) return {BatchState::kFailed, false, batch.error};
  return {BatchState::kFailed, false, Status(StatusCode::kCancelled, "the transfer was cancelled")};
}

P2pBatches::Ending P2pBatches::poll(BatchId id) {
  const auto entry = batches_.find(id);
  if (entry == batches_.end()) {
    const Status unknown(StatusCode::kInternal, "unknown batch " + std::to_string(id));
    return {.result = {BatchState::kFailed, false, unknown}};
  }
  Batch& batch = entry->second;
  const PeerId peer = batch.queued.peer;
  Lane* const lane = batch.queued.lane;
  if (batch.stopping == Stopping::kRevoked) {
    Ending ending{.result = failed(batch), .peer = peer};
    revoked_.emplace(id, std::move(batch));
    batches_.erase(entry);
    return ending;
  }
  retire(lane);
  if (lane->order.front() != id) return {.result = {}, .peer = peer};
  Status error;
  switch (batch.queued.done.query(&error, &refused_)) {
    case EventProgress::kPending:
      return {.result = {}, .peer = peer};
    case EventProgress::kFailed:
      // A lost device: whether its last writes landed nobody can say.
      lane->order.pop_front();
      lost_.push_back(std::move(batch));
      batches_.erase(entry);
      return {.result = {BatchState::kFailed, true, std::move(error)}, .peer = peer};
    case EventProgress::kReached:
      break;
  }
  // Whether the kernel saw the word in time it does not say; what was asked to stop may be incomplete.
  const bool is_whole = batch.stopping == Stopping::kNot && batch.error.is_ok();
  Ending ending{.result = is_whole ? BatchResult{BatchState::kDone, false, {}} : failed(batch), .peer = peer};
  lane->order.pop_front();
  free(std::move(batch.queued));
  batches_.erase(entry);
  return ending;
}

void P2pBatches::cancel(BatchId id) {
  const auto entry = batches_.find(id);
  if (entry == batches_.end()) return;
  Batch& batch = entry->second;
  if (batch.queued.word == nullptr || batch.stopping != Stopping::kNot) return;
  const bool has_not_begun = AbortWords::revoke(batch.queued.word);
  batch.stopping = has_not_begun && batch.queued.is_gated ? Stopping::kRevoked : Stopping::kAsked;
}

void P2pBatches::retire() {
  for (std::size_t i = 0; i < dropped_.size();) {
    Status error;
    const EventProgress progress = dropped_[i].done.query(&error, &refused_);
    if (progress == EventProgress::kPending) {
      ++i;
      continue;
    }
    if (progress == EventProgress::kReached) {
      free(std::move(dropped_[i]));
    } else {
      lost_.push_back(Batch{.queued = std::move(dropped_[i]), .error = std::move(error)});
    }
    dropped_.erase(dropped_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (revoked_.empty()) return;
  for (Lane* lane : {&ready_[0], &ready_[1], &waiting_}) retire(lane);
}

void P2pBatches::retire(Lane* lane) {
  while (!lane->order.empty()) {
    const auto entry = revoked_.find(lane->order.front());
    if (entry == revoked_.end()) return;
    Status error;
    const EventProgress progress = entry->second.queued.done.query(&error, &refused_);
    if (progress == EventProgress::kPending) return;
    lane->order.pop_front();
    if (progress == EventProgress::kReached) {
      free(std::move(entry->second.queued));
    } else {
      lost_.push_back(std::move(entry->second));
    }
    revoked_.erase(entry);
  }
}

}  // namespace kvt
