// Whom slices can be bounced to: what each side says of its arena, and when a peer is gone.

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "transport/bounce_path.h"

namespace kvt {
namespace {

// How often peers are looked at for whether the transport below lost them.
constexpr std::chrono::milliseconds kPeerInterval{50};
// The same for processes, which announce their end: how long a turn without a system call may hold that up.
constexpr std::chrono::milliseconds kProcessInterval{1};

// Before the link's own address: boot id 16 | pid namespace 8 | start time 8 | pid 4.
constexpr std::size_t kIdentityBytes = 36;

std::vector<std::byte> with_identity(const std::vector<std::byte>& address) {
  ProcessIdentity self;
  // Without one nobody can watch this process, and that is all.
  if (!own_identity(&self).is_ok()) self = {};
  std::vector<std::byte> out(kIdentityBytes + address.size());
  std::copy(self.boot_id.begin(), self.boot_id.end(), out.begin());
  std::memcpy(out.data() + 16, &self.pid_namespace, sizeof self.pid_namespace);
  std::memcpy(out.data() + 24, &self.start_time, sizeof self.start_time);
  std::memcpy(out.data() + 32, &self.pid, sizeof self.pid);
  std::copy(address.begin(), address.end(), out.begin() + kIdentityBytes);
  return out;
}

ProcessIdentity identity_of(std::span<const std::byte> address) {
  ProcessIdentity out;
  std::copy_n(address.begin(), out.boot_id.size(), out.boot_id.begin());
  std::memcpy(&out.pid_namespace, address.data() + 16, sizeof out.pid_namespace);
  std::memcpy(&out.start_time, address.data() + 24, sizeof out.start_time);
  std::memcpy(&out.pid, address.data() + 32, sizeof out.pid);
  return out;
}

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
                            .link_address = with_identity(link_->address())};
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
    const std::span<const std::byte> address(head->link_address);
    const Status linked = link_->add_peer(peer, address.subspan(kIdentityBytes));
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
  if (head->link_address.size() < kIdentityBytes) return "the peer's bounce address is cut";
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
  paths.has_near_frames = paths.bounce.is_available && link_->stands_alone(peer);
  return paths;
}

void BouncePath::take_advice(std::vector<std::string>* out) {
  // Null once it was given up with memory that is still in use.
  if (base_ != nullptr) base_->take_advice(out);
  copy_advice_.take(&advice_);
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
  watch(peer, head);
}

void BouncePath::watch(PeerId peer, const BounceMetadata& head) {
  ProcessIdentity self;
  const ProcessIdentity process = identity_of(head.link_address);
  // What cannot be watched shows when such a peer goes and leaves regions behind. This process's own end proves nothing
  // to it.
  if (own_identity(&self).is_ok() && process == self) return;
  if (processes_->add(peer, process).is_ok()) watched_.insert(peer);
}

void BouncePath::lose_bounce(PeerId peer, bool is_proven) {
  const TimePoint now = std::chrono::steady_clock::now();
  offered_.erase(peer);
  has_changed_ = true;
  if (bounced_.erase(peer) > 0) {
    writer_.remove_peer(peer, now);
    reader_.remove_peer(peer, is_proven, now);
    parting_.insert(peer);
  } else if (is_proven) {
    reader_.prove_end(peer, now);
  } else if (!parting_.contains(peer)) {
    link_->remove_peer(peer);
  }
}

void BouncePath::end_link(PeerId peer) {
  link_->remove_peer(peer);
  parting_.erase(peer);
  if (reader_.is_unproven(peer) && !watched_.contains(peer)) advise_of_loss();
}

void BouncePath::end_quiet_links() {
  std::vector<PeerId> quiet;
  for (const PeerId peer : parting_) {
    if (!reader_.is_unproven(peer) && !writer_.owes(peer)) quiet.push_back(peer);
  }
  for (const PeerId peer : quiet) end_link(peer);
}

void BouncePath::advise_of_loss() {
  if (std::exchange(has_advised_of_loss_, true)) return;
  advice_.push_back(
      std::to_string(reader_.lost_bytes() >> 10) + " KiB of the bounce arena's " + std::to_string(arena_.size >> 20) +
      " MiB may still be written by an agent that is gone, and nothing that happens here can prove the end of that: "
      "they are not used again while this agent is open (lostBytes of its bounce stats); open it again before much is "
      "lost, "
      "or give it a larger kvCacheBounceSizeMb");
}

void BouncePath::remove_peer(PeerId peer) {
  copy_advice_.remove_peer(peer);
  // Its agent may run on, and nobody asked it what it still writes.
  lose_bounce(peer, false);
  agreed_.erase(peer);
  states_.erase(peer);
  const TimePoint now = std::chrono::steady_clock::now();
  act(now);
  // Ends what was not posted, so that the peer is told so while it can be.
  post_writes(now);
  if (writes_.is_in_flight_to(peer)) {
    leaving_.insert(peer);
  } else {
    base_->remove_peer(peer);
    if (!link_->stands_alone(peer)) end_link(peer);
  }
  end_quiet_links();
}

void BouncePath::check_peers(TimePoint now) {
  for (const PeerId peer : std::exchange(unreachable_, {})) {
    lose_bounce(peer, options_.link_end_proves_end && link_->has_ended(peer));
    end_link(peer);
  }
  if (now - peers_checked_at_ < kPeerInterval) return;
  peers_checked_at_ = now;
  std::vector<PeerId> gone;
  for (const auto& [peer, head] : bounced_) {
    Status error;
    if (base_->poll_peer(peer, &error) == PeerState::kFailed) gone.push_back(peer);
  }
  for (const PeerId peer : gone) lose_bounce(peer, false);
  std::erase_if(watched_, [this](PeerId peer) {
    if (bounced_.contains(peer) || reader_.is_unproven(peer)) return false;
    processes_->remove(peer);
    return true;
  });
}

void BouncePath::check_processes(TimePoint now) {
  if (watched_.empty() || now - processes_checked_at_ < kProcessInterval) return;
  processes_checked_at_ = now;
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(processes_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    processes_->on_event(events[static_cast<std::size_t>(i)].data.u64 & ~ProcessWatcher::kEventBit, now);
  }
  std::vector<WatchId> ended;
  processes_->take_ended(now, &ended);
  for (const WatchId watch : ended) {
    const auto peer = static_cast<PeerId>(watch);
    watched_.erase(peer);
    lose_bounce(peer, true);
    end_link(peer);
  }
}

}  // namespace kvt
