#include "core/bounce_writer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvt {
namespace {

// Requests a peer is asked for at a time; enough to keep a link busy with the smallest ones.
constexpr std::size_t kMaxOpenRequests = 64;

std::size_t index_of(auto state) { return static_cast<std::size_t>(state); }

}  // namespace

std::uint64_t BounceWriter::begin_of(const Request& request, std::uint32_t chunk) {
  return std::uint64_t{chunk} * request.chunk_bytes;
}

std::uint64_t BounceWriter::end_of(const Request& request, std::uint32_t chunk) {
  return std::min(begin_of(request, chunk) + request.chunk_bytes, request.plan->total_bytes);
}

std::uint32_t BounceWriter::count_of(const Request& request, ChunkState state) {
  return request.count[index_of(state)];
}

bool BounceWriter::is_quiet(const Request& request) {
  return count_of(request, ChunkState::kGathering) == 0 && count_of(request, ChunkState::kSent) == 0;
}

void BounceWriter::move(Request* request, Chunk* chunk, ChunkState to) {
  --request->count[index_of(chunk->state)];
  ++request->count[index_of(to)];
  chunk->state = to;
}

void BounceWriter::add_peer(BouncePeer peer, std::uint64_t max_chunk, std::uint64_t remote_arena_bytes) {
  peers_.insert_or_assign(peer, Peer{max_chunk, remote_arena_bytes, {}, 0});
}

void BounceWriter::remove_peer(BouncePeer peer, BounceTime now) {
  if (peers_.erase(peer) == 0) return;
  parting_.insert(peer);
  std::vector<BounceSlice> theirs;
  for (const auto& [id, slice] : slices_) {
    if (slice.peer == peer) theirs.push_back(id);
  }
  for (const BounceSlice id : theirs) {
    fail_slice(id, BounceOutcome::kFailed, Status(StatusCode::kPeerLost, "the peer is gone"), now);
  }
  // Nobody is left to answer, nor to scatter on our behalf.
  std::vector<BounceRequest> unanswered;
  for (auto& [id, request] : requests_) {
    if (request.peer != peer) continue;
    for (Chunk& chunk : request.chunks) {
      if (chunk.state == ChunkState::kSent) move(&request, &chunk, ChunkState::kAnswered);
    }
    unanswered.push_back(id);
  }
  for (const BounceRequest id : unanswered) settle_request(id, now);
  if (!owes(peer)) parting_.erase(peer);
}

bool BounceWriter::owes(BouncePeer peer) const {
  return parting_.contains(peer) && std::any_of(requests_.begin(), requests_.end(),
                                                [peer](const auto& entry) { return entry.second.peer == peer; });
}

void BounceWriter::submit(BounceSlice slice_id, BouncePeer peer, std::uint64_t ticket,
                          std::vector<BounceRequestPlan> plans, BounceTime now) {
  Peer& to = peers_.at(peer);
  if (plans.empty()) {
    emit(BounceSliceEnded{slice_id, BounceOutcome::kTransferred, 0, true, {}});
    return;
  }
  Slice& slice = slices_[slice_id];
  slice.peer = peer;
  for (BounceRequestPlan& plan : plans) {
    const BounceRequest id = ++last_request_;
    Request request;
    request.slice = slice_id;
    request.peer = peer;
    request.ticket = ticket;
    request.chunk_bytes = choose_chunk_bytes(plan.total_bytes, to.max_chunk, sizing_);
    request.chunks.resize(static_cast<std::size_t>((plan.total_bytes - 1) / request.chunk_bytes + 1));
    request.count[index_of(ChunkState::kWaiting)] = static_cast<std::uint32_t>(request.chunks.size());
    request.plan = std::make_shared<const BounceRequestPlan>(std::move(plan));
    requests_.emplace(id, std::move(request));
    slice.requests.push_back(id);
    to.queued.push_back(id);
  }
  open_queued(peer, now);
}

void BounceWriter::open_queued(BouncePeer peer, BounceTime now) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  Peer& to = entry->second;
  while (!to.queued.empty() && to.open < kMaxOpenRequests && wants_left_ > 0) {
    --wants_left_;
    const BounceRequest id = to.queued.front();
    to.queued.pop_front();
    ++to.open;
    send_want(id, &requests_.at(id), now);
  }
}

void BounceWriter::send(const Request& request, const BounceFrame& frame) {
  if (!peers_.contains(request.peer) && !parting_.contains(request.peer)) return;
  emit(SendBounceFrame{request.peer, encode_bounce_frame(frame)});
}

BounceFrame BounceWriter::frame_of(BounceRequest id, const Request& request, BounceFrameType type) const {
  BounceFrame frame;
  frame.type = type;
  frame.request = id;
  frame.ticket = request.ticket;
  return frame;
}

void BounceWriter::send_want(BounceRequest id, Request* request, BounceTime now) {
  BounceFrame want = frame_of(id, *request, BounceFrameType::kWant);
  want.total_bytes = request->plan->total_bytes;
  want.chunk_bytes = request->chunk_bytes;
  want.groups = request->plan->groups;
  want.slots = request->plan->destination_slots;
  request->state = RequestState::kActive;
  request->progress_at = now;
  send(*request, want);
}

void BounceWriter::send_cancel(BounceRequest id, Request* request) {
  BounceFrame cancel = frame_of(id, *request, BounceFrameType::kCancel);
  for (const Chunk& chunk : request->chunks) {
    if (chunk.state == ChunkState::kUnproven && chunk.grant) cancel.unproven.push_back(chunk.grant->grant);
  }
  request->cancel_sent = true;
  send(*request, cancel);
}

void BounceWriter::release_staging(Chunk* chunk) { (void)arena_->release_staging(chunk->staging); }

bool BounceWriter::stage_next(BounceRequest id, Request* request, BounceTime now) {
  if (request->state != RequestState::kActive || request->next_stage == request->chunks.size()) return false;
  // What is staged and not yet handed over; a grant for more is not given either.
  const std::uint32_t staged = count_of(*request, ChunkState::kGathering) + count_of(*request, ChunkState::kGathered) +
                               count_of(*request, ChunkState::kWriting);
  if (staged >= max_inflight_) return false;
  const std::uint32_t index = request->next_stage;
  Chunk& chunk = request->chunks[index];
  const std::uint64_t begin = begin_of(*request, index);
  const std::uint64_t end = end_of(*request, index);
  const auto kind = chunk.grant ? CreditScheduler::StagingKind::kGranted : CreditScheduler::StagingKind::kAhead;
  const std::optional<std::uint64_t> staging = arena_->stage(end - begin, kind);
  if (!staging) return false;
  chunk.staging = *staging;
  move(request, &chunk, ChunkState::kGathering);
  ++request->next_stage;
  request->progress_at = now;
  emit(GatherBounceChunk{{id, index}, request->slice, request->plan, begin, end, *staging});
  return true;
}

void BounceWriter::gathered(BounceChunk id, const Status& status, BounceTime now) {
  const auto entry = requests_.find(id.request);
  if (entry == requests_.end()) return;
  Request& request = entry->second;
  Chunk& chunk = request.chunks[id.chunk];
  if (chunk.state == ChunkState::kDiscarding) {
    release_staging(&chunk);
    move(&request, &chunk, ChunkState::kDropped);
    forget_request(id.request);
    return;
  }
  if (chunk.state != ChunkState::kGathering) return;
  request.progress_at = now;
  if (status.is_ok() && request.state == RequestState::kActive) {
    move(&request, &chunk, ChunkState::kGathered);
    release_source(request.slice, &slices_.at(request.slice));
    write_if_ready(id.request, &request, id.chunk);
    return;
  }
  release_staging(&chunk);
  move(&request, &chunk, ChunkState::kDropped);
  if (!status.is_ok() && request.state == RequestState::kActive) {
    fail_slice(request.slice, BounceOutcome::kFailed,
               Status(status.code(), "the gather before a bounced write failed: " + status.message()), now);
  } else {
    settle_request(id.request, now);
  }
}

void BounceWriter::write_if_ready(BounceRequest id, Request* request, std::uint32_t index) {
  Chunk& chunk = request->chunks[index];
  if (chunk.state != ChunkState::kGathered || !chunk.grant) return;
  move(request, &chunk, ChunkState::kWriting);
  emit(WriteBounceChunk{{id, index},
                        request->peer,
                        chunk.staging,
                        chunk.grant->offset,
                        end_of(*request, index) - begin_of(*request, index)});
}

void BounceWriter::wrote(BounceChunk id, const Status& status, bool may_still_land, BounceTime now) {
  const auto entry = requests_.find(id.request);
  if (entry == requests_.end()) return;
  Request& request = entry->second;
  Chunk& chunk = request.chunks[id.chunk];
  if (chunk.state != ChunkState::kWriting) return;
  if (!status.is_ok() && may_still_land) {
    ++request.unproven;
    move(&request, &chunk, ChunkState::kUnproven);
  } else {
    release_staging(&chunk);
    const bool is_handed_over = status.is_ok() && request.state == RequestState::kActive;
    move(&request, &chunk, is_handed_over ? ChunkState::kSent : ChunkState::kDropped);
    if (is_handed_over) {
      request.progress_at = now;
      BounceFrame data = frame_of(id.request, request, BounceFrameType::kData);
      data.grant = chunk.grant->grant;
      data.chunk = id.chunk;
      send(request, data);
      return;
    }
  }
  if (request.state == RequestState::kActive) {
    fail_slice(request.slice, BounceOutcome::kFailed, status, now);
  } else {
    settle_request(id.request, now);
  }
}

void BounceWriter::write_drained(BounceChunk id) {
  const auto entry = requests_.find(id.request);
  if (entry == requests_.end()) return;
  Request& request = entry->second;
  Chunk& chunk = request.chunks[id.chunk];
  if (chunk.state != ChunkState::kUnproven) return;
  release_staging(&chunk);
  move(&request, &chunk, ChunkState::kDropped);
  --request.unproven;
  if (request.cancel_sent) send_cancel(id.request, &request);
  forget_request(id.request);
}

void BounceWriter::on_frame(BouncePeer from, const BounceFrame& frame, BounceTime now) {
  const auto entry = requests_.find(frame.request);
  if (entry == requests_.end()) {
    ++counters_.stale_frames;
    // The reader still keeps something for a request that is over, because our CANCEL was lost or overtaken.
    const bool is_answer = frame.type == BounceFrameType::kNack && frame.refusal == BounceRefusal::kCancelled;
    const bool keeps_regions =
        frame.type == BounceFrameType::kGrant || (frame.type == BounceFrameType::kNack && !is_answer);
    if (keeps_regions && frame.request <= last_request_ && peers_.contains(from)) {
      BounceFrame cancel;
      cancel.type = BounceFrameType::kCancel;
      cancel.request = frame.request;
      cancel.ticket = frame.ticket;
      emit(SendBounceFrame{from, encode_bounce_frame(cancel)});
    }
    return;
  }
  Request& request = entry->second;
  if (request.peer != from || request.ticket != frame.ticket) {
    ++counters_.foreign_frames;
    return;
  }
  switch (frame.type) {
    case BounceFrameType::kGrant:
      on_grant(frame.request, &request, frame, now);
      return;
    case BounceFrameType::kAck:
      on_ack(frame.request, &request, frame, now);
      return;
    case BounceFrameType::kNack:
      if (request.was_refused || request.state == RequestState::kQueued) {
        ++counters_.stale_frames;
        return;
      }
      request.was_refused = true;
      ++counters_.refused;
      for (Chunk& chunk : request.chunks) {
        if (chunk.state == ChunkState::kSent) move(&request, &chunk, ChunkState::kAnswered);
      }
      if (request.state == RequestState::kActive) {
        const bool is_lack = frame.refusal == BounceRefusal::kArenaLost;
        fail_slice(request.slice, BounceOutcome::kFailed,
                   Status(is_lack ? StatusCode::kResource : StatusCode::kTransport,
                          std::string("the receiver refused a bounced slice: ") + to_text(frame.refusal)),
                   now);
      } else {
        settle_request(frame.request, now);
      }
      return;
    case BounceFrameType::kWant:
    case BounceFrameType::kData:
    case BounceFrameType::kCancel:
      ++counters_.foreign_frames;
      return;
  }
}

void BounceWriter::on_grant(BounceRequest id, Request* request, const BounceFrame& frame, BounceTime now) {
  // An ending request takes no grants; its CANCEL gives them back.
  if (request->state != RequestState::kActive) {
    ++counters_.stale_frames;
    return;
  }
  const std::uint64_t arena_bytes = peers_.at(request->peer).arena_bytes;
  for (const GrantedChunk& granted : frame.grants) {
    if (granted.chunk >= request->chunks.size() ||
        granted.bytes != end_of(*request, granted.chunk) - begin_of(*request, granted.chunk) ||
        granted.offset > arena_bytes || granted.bytes > arena_bytes - granted.offset) {
      ++counters_.foreign_frames;
      continue;
    }
    Chunk& chunk = request->chunks[granted.chunk];
    if (chunk.grant) {
      ++counters_.stale_frames;
      continue;
    }
    chunk.grant = granted;
    request->progress_at = now;
    write_if_ready(id, request, granted.chunk);
  }
}

void BounceWriter::on_ack(BounceRequest id, Request* request, const BounceFrame& frame, BounceTime now) {
  if (frame.chunk >= request->chunks.size()) {
    ++counters_.foreign_frames;
    return;
  }
  Chunk& chunk = request->chunks[frame.chunk];
  if (chunk.state != ChunkState::kSent || chunk.grant->grant != frame.grant) {
    ++counters_.stale_frames;
    return;
  }
  move(request, &chunk, ChunkState::kAnswered);
  request->progress_at = now;
  ++request->acked;
  slices_.at(request->slice).bytes += end_of(*request, frame.chunk) - begin_of(*request, frame.chunk);
  if (request->state == RequestState::kActive && request->acked == request->chunks.size()) {
    end_request(id, request);
    return;
  }
  settle_request(id, now);
}

void BounceWriter::cancel(BounceSlice slice, BounceTime now) {
  fail_slice(slice, BounceOutcome::kCancelled, Status(StatusCode::kCancelled, "the transfer was cancelled"), now);
}

void BounceWriter::fail(BounceSlice slice, Status error, BounceTime now) {
  fail_slice(slice, BounceOutcome::kFailed, std::move(error), now);
}

void BounceWriter::fail_slice(BounceSlice id, BounceOutcome outcome, Status error, BounceTime now) {
  const auto entry = slices_.find(id);
  if (entry == slices_.end() || entry->second.outcome != BounceOutcome::kTransferred) return;
  Slice& slice = entry->second;
  slice.outcome = outcome;
  slice.error = std::move(error);
  slice.hold_until = now + std::min(timeouts_.hold, timeouts_.request);
  const std::vector<BounceRequest> requests = slice.requests;
  for (const BounceRequest request_id : requests) {
    Request& request = requests_.at(request_id);
    if (request.state == RequestState::kQueued) {
      // No WANT was sent, so there is nothing to take back.
      const auto peer = peers_.find(request.peer);
      if (peer != peers_.end()) std::erase(peer->second.queued, request_id);
      request.cancel_sent = true;
    }
    const bool was_open = request.state == RequestState::kActive;
    request.state = RequestState::kEnding;
    for (std::uint32_t i = 0; i < request.chunks.size(); ++i) {
      Chunk& chunk = request.chunks[i];
      if (chunk.state == ChunkState::kWaiting) {
        move(&request, &chunk, ChunkState::kDropped);
      } else if (chunk.state == ChunkState::kGathered) {
        release_staging(&chunk);
        move(&request, &chunk, ChunkState::kDropped);
      } else if (chunk.state == ChunkState::kGathering) {
        move(&request, &chunk, ChunkState::kDiscarding);
        emit(DropBounceGather{{request_id, i}});
      }
    }
    if (was_open) {
      const auto peer = peers_.find(request.peer);
      if (peer != peers_.end()) --peer->second.open;
    }
  }
  const BouncePeer peer = slice.peer;
  for (const BounceRequest request_id : requests) settle_request(request_id, now);
  // Whoever is left owes an answer for what was written; no page of this side is concerned.
  if (const auto left = slices_.find(id); left != slices_.end()) release_source(id, &left->second);
  open_queued(peer, now);
}

void BounceWriter::release_source(BounceSlice id, Slice* slice) {
  if (slice->was_released) return;
  for (const BounceRequest request_id : slice->requests) {
    const Request& request = requests_.at(request_id);
    if (count_of(request, ChunkState::kWaiting) > 0 || count_of(request, ChunkState::kGathering) > 0) return;
  }
  slice->was_released = true;
  emit(BounceSourceReleased{id});
}

void BounceWriter::settle_request(BounceRequest id, BounceTime now) {
  (void)now;
  const auto entry = requests_.find(id);
  if (entry == requests_.end()) return;
  Request& request = entry->second;
  if (request.state != RequestState::kEnding && request.state != RequestState::kEnded) return;
  // Not before: the reader gives regions that a CANCEL does not name to others.
  if (!request.cancel_sent && count_of(request, ChunkState::kWriting) == 0) send_cancel(id, &request);
  // A write that still runs reads staging and fills a granted region; no page of either side is concerned.
  if (request.state == RequestState::kEnding && is_quiet(request)) {
    end_request(id, &request);
  } else {
    forget_request(id);
  }
}

void BounceWriter::end_request(BounceRequest id, Request* request) {
  const bool was_active = request->state == RequestState::kActive;
  const BounceSlice slice = request->slice;
  const BouncePeer peer = request->peer;
  const BounceTime progress_at = request->progress_at;
  request->state = RequestState::kEnded;
  std::erase(slices_.at(slice).requests, id);
  forget_request(id);
  settle_slice(slice);
  if (!was_active) return;
  const auto entry = peers_.find(peer);
  if (entry != peers_.end()) --entry->second.open;
  open_queued(peer, progress_at);
}

void BounceWriter::forget_request(BounceRequest id) {
  const Request& request = requests_.at(id);
  if (request.state != RequestState::kEnded || request.unproven > 0) return;
  // Both are answered later, by the chunk's name.
  if (count_of(request, ChunkState::kWriting) == 0 && count_of(request, ChunkState::kDiscarding) == 0) {
    const BouncePeer peer = request.peer;
    requests_.erase(id);
    if (parting_.contains(peer) && !owes(peer)) parting_.erase(peer);
  }
}

void BounceWriter::settle_slice(BounceSlice id) {
  Slice& slice = slices_.at(id);
  if (!slice.requests.empty()) return;
  if (slice.was_reported) {
    emit(BounceSliceDrained{id});
  } else {
    emit(BounceSliceEnded{id, slice.outcome, slice.bytes, true, std::move(slice.error)});
  }
  slices_.erase(id);
}

bool BounceWriter::has_wants() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return !entry.second.queued.empty() && entry.second.open < kMaxOpenRequests;
  });
}

void BounceWriter::step(BounceTime now) {
  for (const auto& [peer, to] : peers_) {
    if (!to.queued.empty()) open_queued(peer, now);
  }
  std::vector<BounceSlice> stuck;
  for (const auto& [id, request] : requests_) {
    // What a gather waits for, multiprocessors that a forward step holds, is not the receiver's fault.
    if (request.state != RequestState::kActive || count_of(request, ChunkState::kGathering) > 0) continue;
    if (now - request.progress_at >= timeouts_.request) stuck.push_back(request.slice);
  }
  for (const BounceSlice id : stuck) {
    fail_slice(id, BounceOutcome::kFailed,
               Status(StatusCode::kTransport,
                      "a bounced slice made no progress for " + std::to_string(timeouts_.request.count()) + " ms"),
               now);
  }
  for (auto& [id, slice] : slices_) {
    if (!slice.hold_until || slice.was_reported || now < *slice.hold_until) continue;
    slice.was_reported = true;
    ++counters_.held_out;
    emit(BounceSliceEnded{id, slice.outcome, slice.bytes, false, std::move(slice.error)});
  }
  // Turns begin behind the request that was staged last.
  for (std::size_t refused = 0; refused < requests_.size();) {
    auto entry = requests_.upper_bound(stage_turn_);
    if (entry == requests_.end()) entry = requests_.begin();
    stage_turn_ = entry->first;
    refused = stage_next(entry->first, &entry->second, now) ? 0 : refused + 1;
  }
}

bool BounceWriter::awaits_frames() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) {
    const Request& request = entry.second;
    if (request.state == RequestState::kEnded) return false;
    // A chunk without its grant, or one that was handed over and is not answered; WANTs that are out ask for more.
    return request.state == RequestState::kEnding || count_of(request, ChunkState::kGathered) > 0 ||
           count_of(request, ChunkState::kSent) > 0 ||
           (request.state == RequestState::kActive && count_of(request, ChunkState::kWaiting) > 0);
  });
}

std::optional<BounceTime> BounceWriter::next_deadline() const {
  std::optional<BounceTime> earliest;
  const auto consider = [&earliest](BounceTime at) {
    if (!earliest || at < *earliest) earliest = at;
  };
  for (const auto& [id, request] : requests_) {
    if (request.state == RequestState::kActive) consider(request.progress_at + timeouts_.request);
  }
  for (const auto& [id, slice] : slices_) {
    if (slice.hold_until && !slice.was_reported) consider(*slice.hold_until);
  }
  return earliest;
}

void BounceWriter::take_actions(std::vector<BounceWriterAction>* out) {
  for (BounceWriterAction& action : actions_) out->push_back(std::move(action));
  actions_.clear();
}

}  // namespace kvt
