// Whom slices can be bounced to: what each side says of its arena, and when a peer is gone.

#include <algorithm>
#include <string>
#include <utility>

#include "transport/bounce_path.h"

namespace kvt {
namespace {

// How often peers are looked at for whether the transport below lost them.
constexpr std::chrono::milliseconds kPeerInterval{50};

}  // namespace

Status BouncePath::metadata(std::vector<std::byte>* out) {
  std::vector<std::byte> base;
  Status status = base_->metadata(&base);
  if (!status.is_ok()) return status;
  const BounceMetadata head{.version = kBounceVersion,
                            .link = options_.link,
                            .kind = arena_.kind,
                            .arena_base = arena_.base,
                            .arena_bytes = arena_.size,
                            .max_chunk = options_.max_chunk_bytes,
                            .link_address = link_->address()};
  *out = wrap_bounce_metadata(head, base);
  return Status::ok();
}

Status BouncePath::begin_add_peer(PeerId peer, std::span<const std::byte> metadata) {
  std::optional<BounceMetadata> head;
  std::span<const std::byte> base;
  Status status = unwrap_bounce_metadata(metadata, &base, &head);
  if (status.is_ok()) status = base_->begin_add_peer(peer, base);
  if (!status.is_ok()) return status;
  std::string why = why_not(head ? &*head : nullptr);
  if (why.empty()) {
    // Frames may come from the moment the peer was told of us, so the link is up before the transport below is.
    const Status linked = link_->add_peer(peer, head->link_address);
    if (linked.is_ok()) {
      offered_.emplace(peer, std::move(*head));
      return status;
    }
    why = linked.message();
  }
  refuse_bounce(peer, std::move(why));
  return status;
}

// Both sides come to the same answer.
std::string BouncePath::why_not(const BounceMetadata* head) const {
  if (head == nullptr) return "the peer has no bounce arena; set kvCacheBounceSizeMb on both sides";
  if (head->version != kBounceVersion) {
    return "the peer speaks version " + std::to_string(head->version) + " of the bounce protocol, this side " +
           std::to_string(kBounceVersion);
  }
  if (head->link != options_.link) return "the peer sends its bounce frames another way";
  if (head->kind != arena_.kind) return "the peer's bounce arena is of another kind of memory";
  if (head->max_chunk == options_.max_chunk_bytes) return {};
  return "the peer's bounce.maxChunkSize is " + std::to_string(head->max_chunk) + ", this side's " +
         std::to_string(options_.max_chunk_bytes) + "; set the same on both sides";
}

void BouncePath::refuse_bounce(PeerId peer, std::string why) {
  advice_.push_back("slices to a peer are not bounced: " + why);
  states_[peer] = {false, std::move(why)};
}

PeerPaths BouncePath::peer_paths(PeerId peer) const {
  PeerPaths paths = base_->peer_paths(peer);
  const auto state = states_.find(peer);
  if (state != states_.end()) paths.bounce = state->second;
  paths.bounces_device = arena_.kind == MemoryKind::kDevice;
  return paths;
}

void BouncePath::take_advice(std::vector<std::string>* out) {
  // Null once it was given up with memory that is still in use.
  if (base_ != nullptr) base_->take_advice(out);
  for (std::string& text : advice_) out->push_back(std::move(text));
  advice_.clear();
}

PeerState BouncePath::poll_peer(PeerId peer, Status* error) {
  const PeerState state = base_->poll_peer(peer, error);
  if (state == PeerState::kReady) connect_bounce(peer);
  return state;
}

void BouncePath::connect_bounce(PeerId peer) {
  const auto offer = offered_.find(peer);
  if (offer == offered_.end()) return;
  const BounceMetadata head = std::move(offer->second);
  offered_.erase(offer);
  // It could name any address as its arena; only memory that it published can be written to at all.
  if (!base_->peer_owns(peer, head.arena_base, head.arena_bytes)) {
    link_->remove_peer(peer);
    refuse_bounce(peer, "the peer's bounce arena is not inside memory that it published");
    return;
  }
  states_[peer] = {true, "small pieces travel packed, through an arena on both sides"};
  writer_.add_peer(peer, options_.max_chunk_bytes, head.arena_bytes);
  reader_.add_peer(peer);
  bounced_.emplace(peer, head);
  agreed_.insert(peer);
}

void BouncePath::lose_bounce(PeerId peer, bool is_proven) {
  const TimePoint now = std::chrono::steady_clock::now();
  offered_.erase(peer);
  link_->remove_peer(peer);
  if (bounced_.erase(peer) == 0) return;
  writer_.remove_peer(peer, now);
  reader_.remove_peer(peer, is_proven, now);
}

void BouncePath::remove_peer(PeerId peer) {
  // Its agent may run on, and nobody asked it what it still writes.
  lose_bounce(peer, false);
  agreed_.erase(peer);
  states_.erase(peer);
  act(std::chrono::steady_clock::now());
  if (writes_.is_in_flight_to(peer)) {
    leaving_.insert(peer);
  } else {
    base_->remove_peer(peer);
  }
}

void BouncePath::check_peers(TimePoint now) {
  for (const PeerId peer : std::exchange(unreachable_, {})) lose_bounce(peer, false);
  if (now - peers_checked_at_ < kPeerInterval) return;
  peers_checked_at_ = now;
  std::vector<PeerId> gone;
  for (const auto& [peer, head] : bounced_) {
    Status error;
    if (base_->poll_peer(peer, &error) == PeerState::kFailed) gone.push_back(peer);
  }
  for (const PeerId peer : gone) lose_bounce(peer, false);
}

}  // namespace kvt
