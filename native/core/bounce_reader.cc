#include "core/bounce_reader.h"

#include <algorithm>
#include <string>

namespace kvt {
namespace {

// A WANT may overtake the registration that made it possible by this much.
constexpr std::chrono::milliseconds kParkLimit{250};
constexpr std::size_t kMaxParked = 256;
// A writer keeps fewer open; more are a flood.
constexpr std::size_t kMaxRequestsPerPeer = 1024;

}  // namespace

Status BounceReader::expect(BouncePeer peer, std::uint64_t ticket, std::vector<InboundGroup> groups) {
  if (!peers_.contains(peer)) return Status(StatusCode::kState, "bounce: the peer is unknown or gone");
  const TicketKey key{peer, ticket};
  if (inbound_.contains(key)) {
    return Status(StatusCode::kState, "bounce: ticket " + std::to_string(ticket) + " is expected already");
  }
  Inbound inbound;
  for (InboundGroup& group : groups) {
    SlotSet slots(std::move(group.slots));
    const bool is_in_range =
        slots.is_empty() || (slots.lowest() >= 0 && slots.highest() < group.table->destination_slot_limit());
    if (!is_in_range) return Status(StatusCode::kInvalidArgument, "bounce: a slot is outside its own pool");
    if (!inbound.groups.emplace(group.key, Destination{std::move(group.table), std::move(slots)}).second) {
      return Status(StatusCode::kInvalidArgument, "bounce: two groups have one key");
    }
  }
  inbound.flow = ++last_flow_;
  inbound_.emplace(key, std::move(inbound));
  return Status::ok();
}

std::vector<BounceReader::RequestKey> BounceReader::requests_of(const TicketKey& ticket) const {
  std::vector<RequestKey> keys;
  for (const auto& [key, request] : requests_) {
    if (request.ticket == ticket) keys.push_back(key);
  }
  return keys;
}

void BounceReader::end(BouncePeer peer, std::uint64_t ticket, BounceTime now) {
  (void)now;
  const TicketKey key{peer, ticket};
  const auto entry = inbound_.find(key);
  if (entry == inbound_.end()) {
    emit(BounceInboundEnded{peer, ticket});
    return;
  }
  if (entry->second.is_ending) return;
  entry->second.is_ending = true;
  for (const RequestKey& request : requests_of(key)) close_request(request, BounceRefusal::kEnded);
  end_inbound_if_quiet(key);
}

void BounceReader::end_inbound_if_quiet(const TicketKey& key) {
  const auto entry = inbound_.find(key);
  if (entry == inbound_.end() || !entry->second.is_ending || entry->second.scattering > 0) return;
  inbound_.erase(entry);
  emit(BounceInboundEnded{key.first, key.second});
}

void BounceReader::remove_peer(BouncePeer peer, bool is_proven, BounceTime now) {
  if (peers_.erase(peer) == 0) return;
  std::erase_if(parked_, [peer](const Parked& parked) { return parked.peer == peer; });
  for (auto& [key, inbound] : inbound_) {
    if (key.first == peer) inbound.is_orphaned = true;
  }
  std::vector<RequestKey> theirs;
  for (const auto& [key, request] : requests_) {
    if (key.first == peer) theirs.push_back(key);
  }
  const bool has_grants =
      std::any_of(grants_.begin(), grants_.end(), [peer](const auto& one) { return one.second.request.first == peer; });
  if (has_grants) parting_.insert(peer);
  for (const RequestKey& key : theirs) close_request(key, BounceRefusal::kEnded);
  if (is_proven) prove_end(peer, now);
  step(now);
}

void BounceReader::prove_end(BouncePeer peer, BounceTime now) {
  // What is being scattered came whole, and is freed when that ends.
  std::vector<BounceGrant> ended;
  for (const auto& [id, grant] : grants_) {
    if (grant.request.first == peer && grant.state == GrantState::kQuarantined) ended.push_back(id);
  }
  for (const BounceGrant id : ended) {
    const RequestKey key = grants_.at(id).request;
    free_grant(id);
    forget_if_over(key);
  }
  grant_chunks(now);
}

void BounceReader::on_frame(BouncePeer from, const BounceFrame& frame, BounceTime now) {
  if (!hears(from)) {
    ++counters_.foreign_frames;
    return;
  }
  switch (frame.type) {
    case BounceFrameType::kWant:
      if (!peers_.contains(from)) {
        ++counters_.stale_frames;
        return;
      }
      on_want(from, frame, now);
      return;
    case BounceFrameType::kData:
      on_data(from, frame, now);
      return;
    case BounceFrameType::kCancel:
      on_cancel(from, frame, now);
      return;
    case BounceFrameType::kGrant:
    case BounceFrameType::kAck:
    case BounceFrameType::kNack:
      ++counters_.foreign_frames;
      return;
  }
}

void BounceReader::nack(BouncePeer peer, BounceRequest request, std::uint64_t ticket, BounceRefusal refusal) {
  if (!hears(peer)) return;
  BounceFrame frame;
  frame.type = BounceFrameType::kNack;
  frame.request = request;
  frame.ticket = ticket;
  frame.refusal = refusal;
  ++counters_.nacks;
  emit(SendBounceFrame{peer, encode_bounce_frame(frame)});
}

std::optional<BounceRefusal> BounceReader::check_want(const Inbound& inbound, const BounceFrame& want,
                                                      std::vector<PackedGroup>* out) const {
  if (want.chunk_bytes > arena_->max_chunk()) return BounceRefusal::kMismatch;
  std::size_t at = 0;
  for (const WantGroup& wanted : want.groups) {
    const auto known = inbound.groups.find(wanted.key);
    if (known == inbound.groups.end() || shape_of(*known->second.table) != wanted.shape) {
      return BounceRefusal::kMismatch;
    }
    const SlotSet& own = known->second.slots;
    const auto begin = want.slots.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(wanted.slot_count);
    for (auto slot = begin; slot != end; ++slot) {
      if (!own.contains(*slot)) return BounceRefusal::kForeignSlot;
    }
    out->push_back({known->second.table, {begin, end}});
    at += wanted.slot_count;
  }
  if (packed_bytes(*out) != want.total_bytes) return BounceRefusal::kMismatch;
  return std::nullopt;
}

void BounceReader::on_want(BouncePeer from, const BounceFrame& frame, BounceTime now) {
  const RequestKey key{from, frame.request};
  if (requests_.contains(key)) {
    ++counters_.stale_frames;
    return;
  }
  const auto refuse = [&](BounceRefusal refusal) {
    ++counters_.refused_requests;
    nack(from, frame.request, frame.ticket, refusal);
  };
  const TicketKey ticket{from, frame.ticket};
  const auto inbound = inbound_.find(ticket);
  if (inbound == inbound_.end()) {
    const bool is_parked = std::any_of(parked_.begin(), parked_.end(), [&](const Parked& parked) {
      return parked.peer == from && parked.want.request == frame.request;
    });
    if (is_parked) {
      ++counters_.stale_frames;
    } else if (parked_.size() < kMaxParked) {
      parked_.push_back({from, frame, now + kParkLimit});
    } else {
      refuse(BounceRefusal::kUnknownTicket);
    }
    return;
  }
  if (inbound->second.is_ending || inbound->second.is_orphaned) {
    refuse(BounceRefusal::kEnded);
    return;
  }
  const auto first = requests_.lower_bound({from, 0});
  const auto last = requests_.upper_bound({from, ~BounceRequest{0}});
  if (static_cast<std::size_t>(std::distance(first, last)) >= kMaxRequestsPerPeer) {
    refuse(BounceRefusal::kTooMany);
    return;
  }
  std::vector<PackedGroup> destinations;
  if (const std::optional<BounceRefusal> refusal = check_want(inbound->second, frame, &destinations)) {
    refuse(*refusal);
    return;
  }
  Request request;
  request.ticket = ticket;
  request.flow = inbound->second.flow;
  request.item = ++last_item_;
  request.destinations = std::make_shared<const std::vector<PackedGroup>>(std::move(destinations));
  request.total_bytes = frame.total_bytes;
  request.chunk_bytes = frame.chunk_bytes;
  const auto chunk_count = static_cast<std::uint32_t>((frame.total_bytes - 1) / frame.chunk_bytes + 1);
  request.chunks_left = chunk_count;
  request.progress_at = now;
  items_.emplace(request.item, key);
  arena_->push(request.flow, request.item, chunk_count, frame.chunk_bytes,
               frame.total_bytes - std::uint64_t{chunk_count - 1} * frame.chunk_bytes);
  requests_.emplace(key, std::move(request));
  grant_chunks(now);
}

void BounceReader::grant_chunks(BounceTime now) {
  std::map<RequestKey, std::vector<GrantedChunk>> given;
  while (const std::optional<CreditScheduler::Credit> credit = arena_->next(now)) {
    const RequestKey key = items_.at(credit->item);
    Request& request = requests_.at(key);
    const BounceGrant id = ++last_grant_;
    grants_.emplace(id, Grant{.request = key,
                              .flow = credit->flow,
                              .chunk = credit->chunk,
                              .offset = credit->offset,
                              .bytes = credit->bytes});
    request.grants.push_back(id);
    request.progress_at = now;
    given[key].push_back({id, credit->offset, credit->chunk, static_cast<std::uint32_t>(credit->bytes)});
  }
  for (const auto& [key, chunks] : given) {
    BounceFrame frame;
    frame.type = BounceFrameType::kGrant;
    frame.request = key.second;
    frame.ticket = requests_.at(key).ticket.second;
    for (std::size_t at = 0; at < chunks.size(); at += kMaxGrantsPerFrame) {
      const std::size_t count = std::min(kMaxGrantsPerFrame, chunks.size() - at);
      const auto begin = chunks.begin() + static_cast<std::ptrdiff_t>(at);
      frame.grants.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
      emit(SendBounceFrame{key.first, encode_bounce_frame(frame)});
    }
  }
}

void BounceReader::on_data(BouncePeer from, const BounceFrame& frame, BounceTime now) {
  const auto entry = grants_.find(frame.grant);
  if (entry == grants_.end()) {
    ++counters_.stale_frames;
    return;
  }
  Grant& grant = entry->second;
  if (grant.request != RequestKey{from, frame.request} || grant.chunk != frame.chunk) {
    ++counters_.foreign_frames;
    return;
  }
  Request& request = requests_.at(grant.request);
  switch (grant.state) {
    case GrantState::kScattering:
    case GrantState::kDropping:
      ++counters_.stale_frames;
      return;
    case GrantState::kQuarantined: {
      // It proves that the write has ended. The answer that its writer waits for was the NACK.
      const RequestKey key = grant.request;
      free_grant(entry->first);
      forget_if_over(key);
      grant_chunks(now);
      return;
    }
    case GrantState::kGranted:
      break;
  }
  grant.state = GrantState::kScattering;
  request.progress_at = now;
  ++request.scattering;
  ++inbound_.at(request.ticket).scattering;
  const std::uint64_t begin = std::uint64_t{grant.chunk} * request.chunk_bytes;
  emit(ScatterBounceChunk{entry->first, request.destinations, begin, begin + grant.bytes, grant.offset});
}

void BounceReader::scattered(BounceGrant id, bool is_complete, BounceTime now) {
  const auto entry = grants_.find(id);
  if (entry == grants_.end()) return;
  const Grant grant = entry->second;
  if (grant.state != GrantState::kScattering && grant.state != GrantState::kDropping) return;
  const RequestKey key = grant.request;
  Request& request = requests_.at(key);
  const TicketKey ticket = request.ticket;
  --request.scattering;
  --inbound_.at(ticket).scattering;
  free_grant(id);
  if (is_complete) {
    --request.chunks_left;
    request.progress_at = now;
    if (hears(key.first)) {
      BounceFrame ack;
      ack.type = BounceFrameType::kAck;
      ack.request = key.second;
      ack.ticket = ticket.second;
      ack.grant = id;
      ack.chunk = grant.chunk;
      emit(SendBounceFrame{key.first, encode_bounce_frame(ack)});
    }
    // Also while it is being closed: each chunk has its ACK then, and a NACK may not follow.
    if (request.chunks_left == 0) request.state = RequestState::kAnswered;
  } else if (request.state == RequestState::kActive) {
    close_request(key, BounceRefusal::kScatterFailed);
  }
  refuse_if_quiet(key);
  forget_if_over(key);
  end_inbound_if_quiet(ticket);
  grant_chunks(now);
}

void BounceReader::close_request(const RequestKey& key, BounceRefusal refusal) {
  Request& request = requests_.at(key);
  if (request.state != RequestState::kActive) return;
  request.state = RequestState::kClosing;
  request.refusal = refusal;
  arena_->remove(request.flow, request.item);
  for (const BounceGrant id : request.grants) {
    Grant& grant = grants_.at(id);
    if (grant.state == GrantState::kGranted) {
      set_aside(&grant);
    } else if (grant.state == GrantState::kScattering) {
      grant.state = GrantState::kDropping;
      emit(DropBounceScatter{id});
    }
  }
  refuse_if_quiet(key);
  forget_if_over(key);
}

void BounceReader::refuse_if_quiet(const RequestKey& key) {
  const auto entry = requests_.find(key);
  if (entry == requests_.end() || entry->second.state != RequestState::kClosing || entry->second.scattering > 0) return;
  entry->second.state = RequestState::kAnswered;
  nack(key.first, key.second, entry->second.ticket.second, entry->second.refusal);
}

void BounceReader::forget_if_over(const RequestKey& key) {
  const auto entry = requests_.find(key);
  if (entry == requests_.end() || entry->second.state != RequestState::kAnswered || !entry->second.grants.empty())
    return;
  items_.erase(entry->second.item);
  requests_.erase(entry);
}

void BounceReader::set_aside(Grant* grant) {
  grant->state = GrantState::kQuarantined;
  arena_->set_aside(grant->flow);
  ++counters_.quarantined;
}

void BounceReader::free_grant(BounceGrant id) {
  const auto entry = grants_.find(id);
  const Grant& grant = entry->second;
  if (grant.state == GrantState::kQuarantined) {
    (void)arena_->release_set_aside(grant.offset);
  } else {
    (void)arena_->release(grant.flow, grant.offset);
  }
  const RequestKey key = grant.request;
  std::erase(requests_.at(key).grants, id);
  grants_.erase(entry);
  if (!parting_.contains(key.first)) return;
  const bool has_more = std::any_of(grants_.begin(), grants_.end(),
                                    [&key](const auto& one) { return one.second.request.first == key.first; });
  if (!has_more) parting_.erase(key.first);
}

void BounceReader::on_cancel(BouncePeer from, const BounceFrame& frame, BounceTime now) {
  const RequestKey key{from, frame.request};
  const std::size_t parked_before = parked_.size();
  std::erase_if(parked_,
                [&](const Parked& parked) { return parked.peer == from && parked.want.request == frame.request; });
  const auto entry = requests_.find(key);
  if (entry == requests_.end() || entry->second.ticket.second != frame.ticket) {
    if (parked_.size() == parked_before) ++counters_.stale_frames;
    // Its answers may have been lost; that nothing is scattered any more is true all the same.
    if (entry == requests_.end()) nack(from, frame.request, frame.ticket, BounceRefusal::kCancelled);
    return;
  }
  close_request(key, BounceRefusal::kCancelled);
  // Closing may have been all there was to it.
  const auto closed = requests_.find(key);
  if (closed == requests_.end()) return;
  const std::vector<BounceGrant> grants = closed->second.grants;
  for (const BounceGrant id : grants) {
    const bool may_still_land = std::find(frame.unproven.begin(), frame.unproven.end(), id) != frame.unproven.end();
    if (grants_.at(id).state == GrantState::kQuarantined && !may_still_land) free_grant(id);
  }
  forget_if_over(key);
  grant_chunks(now);
}

void BounceReader::step(BounceTime now) {
  std::vector<Parked> ready;
  std::erase_if(parked_, [&](Parked& parked) {
    if (!inbound_.contains({parked.peer, parked.want.ticket}) && now < parked.until) return false;
    ready.push_back(std::move(parked));
    return true;
  });
  for (const Parked& parked : ready) {
    if (inbound_.contains({parked.peer, parked.want.ticket})) {
      on_want(parked.peer, parked.want, now);
    } else {
      ++counters_.refused_requests;
      nack(parked.peer, parked.want.request, parked.want.ticket, BounceRefusal::kUnknownTicket);
    }
  }
  std::vector<RequestKey> stuck;
  for (const auto& [key, request] : requests_) {
    // One that is being scattered waits for us.
    if (request.state != RequestState::kActive || request.scattering > 0) continue;
    if (now - request.progress_at >= 2 * timeouts_.request) stuck.push_back(key);
  }
  for (const RequestKey& key : stuck) {
    const bool is_starved = requests_.at(key).grants.empty() && lost_bytes() > 0;
    close_request(key, is_starved ? BounceRefusal::kArenaLost : BounceRefusal::kTimedOut);
  }
  grant_chunks(now);
  refuse_starved();
}

void BounceReader::refuse_starved() {
  if (parting_.empty() || arena_->waiting() == 0) return;
  // Anything else in the arena comes back, and makes room.
  if (arena_->arena().used() != lost_bytes()) return;
  std::vector<RequestKey> starved;
  for (const auto& [key, request] : requests_) {
    const bool waits = request.state == RequestState::kActive && request.grants.empty();
    if (waits && !arena_->has_room(std::min<std::uint64_t>(request.chunk_bytes, request.total_bytes))) {
      starved.push_back(key);
    }
  }
  for (const RequestKey& key : starved) close_request(key, BounceRefusal::kArenaLost);
}

std::optional<BounceTime> BounceReader::next_deadline() const {
  std::optional<BounceTime> earliest = arena_->drain_until();
  const auto consider = [&earliest](BounceTime at) {
    if (!earliest || at < *earliest) earliest = at;
  };
  for (const Parked& parked : parked_) consider(parked.until);
  for (const auto& [key, request] : requests_) {
    if (request.state == RequestState::kActive) consider(request.progress_at + 2 * timeouts_.request);
  }
  return earliest;
}

std::size_t BounceReader::quarantined_now() const {
  return static_cast<std::size_t>(std::count_if(grants_.begin(), grants_.end(), [](const auto& entry) {
    return entry.second.state == GrantState::kQuarantined;
  }));
}

std::uint64_t BounceReader::lost_bytes() const {
  std::uint64_t bytes = 0;
  if (parting_.empty()) return bytes;
  for (const auto& [id, grant] : grants_) {
    const bool is_lost = grant.state == GrantState::kQuarantined && parting_.contains(grant.request.first);
    if (is_lost) bytes += arena_->arena().block_bytes(grant.bytes);
  }
  return bytes;
}

bool BounceReader::is_serving() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const auto& entry) { return entry.second.state != RequestState::kAnswered; });
}

bool BounceReader::is_scattering(BouncePeer peer, std::uint64_t ticket) const {
  const auto entry = inbound_.find({peer, ticket});
  return entry != inbound_.end() && entry->second.scattering > 0;
}

void BounceReader::take_actions(std::vector<BounceReaderAction>* out) {
  for (BounceReaderAction& action : actions_) out->push_back(std::move(action));
  actions_.clear();
}

}  // namespace kvt
