#include "engine/transfer_loop.h"

#include <algorithm>
#include <utility>

namespace kvt {

void TransferLoop::submit(Submission submission) {
  const SubmissionId id = submission.id;
  const FlowId flow = submission.flow;
  Transfer transfer{.peer = submission.peer,
                    .flow = flow,
                    .cursor = PlanCursor(std::move(submission.groups)),
                    .after = std::move(submission.after),
                    .error = {},
                    .posted_at = {},
                    .ticket = submission.ticket,
                    .route = {}};
  const auto [entry, is_new] = transfers_.emplace(id, std::move(transfer));
  if (!is_new) return;  // the addon refuses ids that are in use
  scheduler_.push(flow, id);
  if (!submission.note.empty()) arm_note(&submission);
}

void TransferLoop::arm_note(Submission* submission) {
  const auto note = std::make_shared<ArmedNote>(ArmedNote{.carrier = submission->id,
                                                          .peer = submission->peer,
                                                          .bytes = std::move(submission->note),
                                                          .waits_for = 1 + submission->note_also.size()});
  armed_.emplace(submission->id, note);
  for (const SubmissionId id : submission->note_also) {
    // One that has ended may have failed: who armed the note will hear how, and say what there is to say.
    const auto transfer = transfers_.find(id);
    if (transfer == transfers_.end() || transfer->second.peer != note->peer ||
        transfer->second.phase == Phase::kQuarantined || transfer->second.outcome != Outcome::kTransferred) {
      end_note(note.get(), false);
      return;
    }
    armed_.emplace(id, note);
  }
  transport_->announce_note(note->peer, note->bytes);
}

void TransferLoop::note_arrived(SubmissionId id) {
  const auto [begin, end] = armed_.equal_range(id);
  for (auto entry = begin; entry != end; ++entry) {
    ArmedNote& note = *entry->second;
    if (note.is_over || --note.waits_for > 0) continue;
    end_note(&note, transport_->send_note(note.peer, note.bytes));
  }
  armed_.erase(begin, end);
}

void TransferLoop::drop_notes(SubmissionId id) {
  const auto [begin, end] = armed_.equal_range(id);
  for (auto entry = begin; entry != end; ++entry) end_note(entry->second.get(), false);
  armed_.erase(begin, end);
}

void TransferLoop::end_note(ArmedNote* note, bool is_sent) {
  if (note->is_over) return;
  note->is_over = true;
  notices_.push_back({.kind = NoticeKind::kNote,
                      .submission = note->carrier,
                      .outcome = is_sent ? Outcome::kTransferred : Outcome::kCancelled,
                      .posted_at = {},
                      .error = {}});
}

void TransferLoop::cancel(SubmissionId submission) {
  const auto entry = transfers_.find(submission);
  if (entry == transfers_.end()) return;
  // At once, whether or not the transfer can still be stopped: who cancels will say something else.
  drop_notes(submission);
  entry->second.is_cancelled = true;
  stop(submission, &entry->second, Outcome::kCancelled, Status(StatusCode::kCancelled, "the transfer was cancelled"));
  cancel_batches(submission);
}

void TransferLoop::cancel_batches(SubmissionId id) {
  for (const auto& [batch_id, batch] : batches_) {
    if (batch.submission == id && batch.is_whole) transport_->cancel(batch_id);
  }
}

void TransferLoop::events_changed() {
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    if (waiting.event->state() == EventState::kPending) return false;
    if (waiting.event->device_event() != nullptr) --polled_events_;
    scheduler_.wake(waiting.flow);
    return true;
  });
}

void TransferLoop::remove_peer(PeerId peer) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  entry->second.is_leaving = true;
  std::vector<SubmissionId> theirs;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.peer == peer) theirs.push_back(id);
  }
  std::sort(theirs.begin(), theirs.end());
  for (const SubmissionId id : theirs) {
    drop_notes(id);
    stop(id, &transfers_.at(id), Outcome::kFailed, Status(StatusCode::kPeerLost, "the peer was removed"));
    cancel_batches(id);
  }
  forget_peer_if_ended(peer);
}

void TransferLoop::forget_peer_if_ended(PeerId peer) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end() || !entry->second.is_leaving || entry->second.in_flight > 0) return;
  peers_.erase(entry);
  transport_->remove_peer(peer);
}

bool TransferLoop::step() {
  if (polls_events()) events_changed();
  stop_behind_failed_events();
  poll_batches();
  collect_released();
  collect_drained();
  return post_next();
}

bool TransferLoop::fails_with_event(Transfer* transfer, EventState state) {
  if (state != EventState::kFailed) return false;
  transfer->outcome = Outcome::kFailed;
  const Status& failure = transfer->after->failure();
  transfer->error = Status(failure.code(), "the work before the transfer failed: " + failure.message());
  return true;
}

void TransferLoop::stop_behind_failed_events() {
  for (const auto& [id, batch] : batches_) {
    if (!batch.is_whole) continue;
    Transfer& transfer = transfers_.at(batch.submission);
    if (transfer.after == nullptr || transfer.outcome != Outcome::kTransferred) continue;
    if (fails_with_event(&transfer, transfer.after->known_state())) transport_->cancel(id);
  }
}

void TransferLoop::poll_batches() {
  if (batches_.empty()) return;
  scratch_.clear();
  for (const auto& [id, batch] : batches_) scratch_.push_back(id);
  // In the order they were posted: completions of one flow then come in order where the transport allows it.
  std::sort(scratch_.begin(), scratch_.end());
  for (const BatchId id : scratch_) {
    BatchResult result = transport_->poll(id);
    if (result.state == BatchState::kInFlight) continue;
    const Batch batch = batches_.at(id);
    batches_.erase(id);
    Peer& peer = peers_.at(batch.peer);
    --peer.in_flight;
    --peer.by_lane[batch.lane];
    for (const FlowId flow : peer.parked) scheduler_.wake(flow);
    peer.parked.clear();
    --transfers_.at(batch.submission).in_flight;
    end_batch(id, batch, std::move(result));
    forget_peer_if_ended(batch.peer);
  }
}

void TransferLoop::collect_released() {
  if (batches_.empty()) return;
  scratch_.clear();
  transport_->take_released(&scratch_);
  for (const BatchId id : scratch_) {
    // What ended meanwhile said so by its completion.
    const auto batch = batches_.find(id);
    if (batch == batches_.end() || !batch->second.is_whole) continue;
    notices_.push_back(
        {.kind = NoticeKind::kReleased, .submission = batch->second.submission, .posted_at = {}, .error = {}});
  }
}

void TransferLoop::collect_drained() {
  if (quarantined_.empty()) return;
  scratch_.clear();
  transport_->take_drained(&scratch_);
  for (const BatchId id : scratch_) {
    const auto entry = quarantined_.find(id);
    if (entry == quarantined_.end()) continue;
    const SubmissionId submission = entry->second;
    quarantined_.erase(entry);
    Transfer& transfer = transfers_.at(submission);
    --transfer.undrained;
    if (transfer.phase != Phase::kQuarantined || transfer.undrained > 0) continue;
    notices_.push_back({.kind = NoticeKind::kDrained, .submission = submission, .posted_at = {}, .error = {}});
    transfers_.erase(submission);
  }
}

bool TransferLoop::post_next() {
  while (const std::optional<ItemId> head = scheduler_.head()) {
    Transfer& transfer = transfers_.at(*head);
    if (!is_postable(*head, &transfer)) continue;
    post(*head, &transfer);
    return scheduler_.head().has_value();
  }
  return false;
}

bool TransferLoop::is_postable(SubmissionId id, Transfer* transfer) {
  if (!transfer->route)
    transfer->route = transport_->route(transfer->peer, transfer->ticket, transfer->cursor.groups());
  if (transfer->after != nullptr) {
    const bool is_devices = transfer->after->device_event() != nullptr;
    switch (transfer->after->state()) {
      case EventState::kPending:
        // The device waits for it: the copy is queued before the forward has ended.
        if (is_devices && transfer->route->is_whole && transfer->route->device_waits) break;
        if (is_devices) ++polled_events_;
        waiting_.push_back({transfer->flow, transfer->after});
        scheduler_.park();
        return false;
      case EventState::kFailed:
        (void)fails_with_event(transfer, EventState::kFailed);
        stop(id, transfer, Outcome::kFailed, std::move(transfer->error));
        return false;
      case EventState::kReached:
        transfer->after.reset();
        break;
    }
  }
  const auto peer = peers_.find(transfer->peer);
  if (peer == peers_.end() || peer->second.is_leaving) {
    stop(id, transfer, Outcome::kFailed, Status(StatusCode::kPeerLost, "the peer was removed"));
    return false;
  }
  if (peer->second.by_lane[transfer->route->lane] >= transfer->route->limits.max_in_flight) {
    peer->second.parked.push_back(transfer->flow);
    scheduler_.park();
    return false;
  }
  return true;
}

BatchResult TransferLoop::post_runs(BatchId batch, Transfer* transfer, std::size_t* bytes) {
  runs_.clear();
  const BatchLimits& limits = transfer->route->limits;
  *bytes = transfer->cursor.take(limits.max_runs, limits.max_bytes, &runs_);
  if (*bytes == 0) return {BatchState::kDone, false, {}};
  return transport_->post(batch, transfer->peer, runs_);
}

BatchResult TransferLoop::post_whole(BatchId batch, Transfer* transfer, std::size_t* bytes) {
  *bytes = transfer->cursor.bytes_left();
  if (*bytes == 0) return {BatchState::kDone, false, {}};
  const CudaEvent* after = transfer->after == nullptr ? nullptr : transfer->after->device_event();
  BatchResult result =
      transport_->post_slice(batch, transfer->peer, transfer->ticket, transfer->cursor.groups(), after);
  transfer->cursor.finish();
  return result;
}

void TransferLoop::post(SubmissionId id, Transfer* transfer) {
  const BatchId batch_id = last_batch_ + 1;
  const TimePoint posted_at = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  BatchResult result =
      transfer->route->is_whole ? post_whole(batch_id, transfer, &bytes) : post_runs(batch_id, transfer, &bytes);
  transfer->posting += std::chrono::steady_clock::now() - posted_at;
  if (transfer->cursor.is_done()) {
    transfer->phase = Phase::kEnding;
    scheduler_.finish_head();
  } else {
    transfer->phase = Phase::kPosting;
    scheduler_.end_turn();
  }
  if (bytes == 0) {
    settle_if_ended(id, transfer);
    return;
  }
  last_batch_ = batch_id;
  if (!transfer->posted_at) transfer->posted_at = posted_at;
  const Batch batch{id, transfer->peer, bytes, transfer->route->is_whole, transfer->route->lane};
  if (result.state == BatchState::kInFlight) {
    ++transfer->in_flight;
    Peer& peer = peers_.at(transfer->peer);
    ++peer.in_flight;
    ++peer.by_lane[batch.lane];
    batches_.emplace(batch_id, batch);
  } else {
    end_batch(batch_id, batch, std::move(result));
  }
}

void TransferLoop::end_batch(BatchId id, const Batch& batch, BatchResult result) {
  Transfer& transfer = transfers_.at(batch.submission);
  const bool is_behind_event = batch.is_whole && transfer.after != nullptr;
  if (result.state == BatchState::kDone) {
    // The copy has run, so that the event is reached or has failed, and nothing can change that once it was asked.
    if (!is_behind_event || !fails_with_event(&transfer, transfer.after->state())) transfer.bytes += batch.bytes;
    settle_if_ended(batch.submission, &transfer);
    return;
  }
  if (result.may_still_land) {
    quarantined_.emplace(id, batch.submission);
    ++transfer.undrained;
  }
  // Its batches were stopped because the peer goes, not because anybody cancelled it.
  if (result.error.code() == StatusCode::kCancelled && !transfer.is_cancelled && peers_.at(batch.peer).is_leaving) {
    result.error = Status(StatusCode::kPeerLost, "the peer was removed");
  }
  const bool is_cancel = result.error.code() == StatusCode::kCancelled;
  // The first failure is the one that explains the rest.
  if (transfer.outcome == Outcome::kTransferred || (transfer.outcome == Outcome::kCancelled && !is_cancel)) {
    transfer.outcome = is_cancel ? Outcome::kCancelled : Outcome::kFailed;
    transfer.error = std::move(result.error);
  }
  if (transfer.phase == Phase::kPosting) {
    scheduler_.remove(transfer.flow, batch.submission);
    transfer.phase = Phase::kEnding;
  }
  settle_if_ended(batch.submission, &transfer);
}

void TransferLoop::stop(SubmissionId id, Transfer* transfer, Outcome outcome, Status error) {
  // Once everything is posted there is nothing left to stop; how the batches end decides.
  if (transfer->phase != Phase::kQueued && transfer->phase != Phase::kPosting) return;
  scheduler_.remove(transfer->flow, id);
  transfer->phase = Phase::kEnding;
  transfer->outcome = outcome;
  transfer->error = std::move(error);
  settle_if_ended(id, transfer);
}

void TransferLoop::settle_if_ended(SubmissionId id, Transfer* transfer) {
  if (transfer->phase != Phase::kEnding || transfer->in_flight > 0) return;
  const bool drained = transfer->undrained == 0;
  const TimePoint finished_at = std::chrono::steady_clock::now();
  if (transfer->outcome == Outcome::kTransferred && drained) {
    note_arrived(id);
  } else {
    drop_notes(id);
  }
  notices_.push_back({.kind = NoticeKind::kCompletion,
                      .submission = id,
                      .outcome = transfer->outcome,
                      .bytes = transfer->bytes,
                      .drained = drained,
                      .posted_at = transfer->posted_at,
                      .posting = transfer->posting,
                      .finished_at = finished_at,
                      .error = std::move(transfer->error)});
  if (drained) {
    transfers_.erase(id);
  } else {
    transfer->phase = Phase::kQuarantined;
  }
}

void TransferLoop::cancel_unposted(const Status& reason) {
  std::vector<SubmissionId> all;
  for (const auto& [id, transfer] : transfers_) all.push_back(id);
  std::sort(all.begin(), all.end());
  for (const SubmissionId id : all) stop(id, &transfers_.at(id), Outcome::kCancelled, reason);
}

void TransferLoop::abandon_all(bool drained, const Status& reason) {
  std::vector<SubmissionId> all;
  for (const auto& [id, transfer] : transfers_) all.push_back(id);
  std::sort(all.begin(), all.end());
  for (const SubmissionId id : all) {
    drop_notes(id);
    Transfer& transfer = transfers_.at(id);
    if (transfer.phase == Phase::kQuarantined) {
      if (!drained) continue;
      notices_.push_back({.kind = NoticeKind::kDrained, .submission = id, .posted_at = {}, .error = {}});
      continue;
    }
    if (transfer.outcome == Outcome::kTransferred) {
      transfer.outcome = Outcome::kFailed;
      transfer.error = reason;
    }
    notices_.push_back({.kind = NoticeKind::kCompletion,
                        .submission = id,
                        .outcome = transfer.outcome,
                        .bytes = transfer.bytes,
                        .drained = drained,
                        .posted_at = transfer.posted_at,
                        .posting = transfer.posting,
                        .finished_at = std::chrono::steady_clock::now(),
                        .error = std::move(transfer.error)});
  }
  transfers_.clear();
  armed_.clear();
  batches_.clear();
  quarantined_.clear();
  peers_.clear();
  waiting_.clear();
  polled_events_ = 0;
  scheduler_ = {};
}

std::vector<Notice> TransferLoop::take_notices() { return std::exchange(notices_, {}); }

}  // namespace kvt
