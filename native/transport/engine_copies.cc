#include "transport/engine_copies.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvt {
namespace {

// One piece is copied while the next waits: the engines never idle, and a cancel waits for two at most (a third of a
// millisecond over NVLink, 5 ms over sixteen lanes of PCIe 4). Small enough for that, large enough that what an engine
// pays between two copies does not show.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
constexpr std::size_t kAheadBytes = 2 * kPieceBytes;

}  // namespace

Status EngineCopies::open(const std::shared_ptr<const CudaContext>& context) {
  context_ = context;
  return CudaStream::create(context, StreamPriority::kLow, &stream_);
}

BatchResult EngineCopies::add(BatchId id, PeerId peer, std::vector<Copy> copies) {
  if (loss_) return {BatchState::kFailed, false, *loss_};
  std::reverse(copies.begin(), copies.end());
  batches_.emplace(id, Batch{.peer = peer, .left = std::move(copies), .error = {}});
  to_queue_.push_back(id);
  feed();
  return {BatchState::kInFlight, false, {}};
}

EngineCopies::Ending EngineCopies::poll(BatchId id) {
  // Only the oldest piece can be reached next: to ask for others would cost a call to the driver each.
  if (!loss_ && !pieces_.empty() && pieces_.front().batch == id) {
    collect();
    feed();
  }
  const auto entry = batches_.find(id);
  if (entry == batches_.end()) {
    const Status unknown(StatusCode::kInternal, "unknown batch " + std::to_string(id));
    return {.result = {BatchState::kFailed, false, unknown}};
  }
  const Batch& batch = entry->second;
  Ending ending{.result = {}, .peer = batch.peer};
  if (loss_) {
    ending.result = {BatchState::kFailed, batch.pieces > 0, *loss_};
  } else if (batch.pieces > 0 || !(batch.left.empty() || batch.is_stopped)) {
    return ending;
  } else if (!batch.error.is_ok()) {
    ending.result = {BatchState::kFailed, false, batch.error};
  } else if (batch.is_stopped) {
    ending.result = {BatchState::kFailed, false, Status(StatusCode::kCancelled, "the transfer was cancelled")};
  } else {
    ending.result = {BatchState::kDone, false, {}};
  }
  batches_.erase(entry);
  return ending;
}

void EngineCopies::cancel(BatchId id) {
  const auto entry = batches_.find(id);
  // What is queued to its end is over as soon as it could be stopped.
  if (entry == batches_.end() || entry->second.left.empty()) return;
  entry->second.is_stopped = true;
  std::erase(to_queue_, id);
}

void EngineCopies::collect() {
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    Status error;
    switch (piece.reached.query(&error, &refused_)) {
      case EventProgress::kPending:
        return;
      case EventProgress::kFailed:
        loss_ = std::move(error);
        return;
      case EventProgress::kReached:
        break;
    }
    queued_bytes_ -= piece.bytes;
    --batches_.at(piece.batch).pieces;
    spare_events_.push_back(piece.reached.take_event());
    pieces_.pop_front();
  }
}

void EngineCopies::feed() {
  while (!loss_ && !to_queue_.empty() && queued_bytes_ + kPieceBytes <= kAheadBytes) {
    const BatchId id = to_queue_.front();
    Batch& batch = batches_.at(id);
    batch.error = queue_piece(id, &batch);
    if (!batch.error.is_ok()) batch.left.clear();
    if (batch.left.empty()) to_queue_.pop_front();
  }
}

Status EngineCopies::queue_piece(BatchId id, Batch* batch) {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  // All that can fail while the device is well comes before the first copy.
  CudaEvent event;
  Status status;
  if (spare_events_.empty()) {
    status = CudaEvent::create(context_, EventTiming::kOff, &event);
    if (!status.is_ok()) return status;
  } else {
    event = std::move(spare_events_.back());
    spare_events_.pop_back();
  }
  Piece piece{.batch = id, .bytes = 0, .reached = StreamMark(std::move(event))};
  const CudaApi& api = context_->api();
  while (piece.bytes < kPieceBytes && !batch->left.empty()) {
    Copy& copy = batch->left.back();
    const std::size_t now = std::min(copy.bytes, kPieceBytes - piece.bytes);
    status =
        api.check(api.cuMemcpyDtoDAsync(copy.destination, copy.source, now, stream_.handle()), "cuMemcpyDtoDAsync");
    if (!status.is_ok()) break;
    piece.bytes += now;
    copy.destination += now;
    copy.source += now;
    copy.bytes -= now;
    if (copy.bytes == 0) batch->left.pop_back();
  }
  if (piece.bytes == 0) {
    spare_events_.push_back(piece.reached.take_event());
    return status;
  }
  piece.reached.set(stream_);
  queued_bytes_ += piece.bytes;
  ++batch->pieces;
  pieces_.push_back(std::move(piece));
  return status;
}

}  // namespace kvt
