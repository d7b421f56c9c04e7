#include "transport/host_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/link_pacer.h"
#include "core/page_copy.h"
#include "core/region_set.h"
#include "transport/host_listener.h"
#include "transport/host_metadata.h"
#include "transport/host_peer.h"
#include "transport/shared_mapping.h"

namespace kvt {
namespace {

constexpr auto kConnectLimit = std::chrono::seconds(2);

// Bounds of a post without a link: large enough that what a batch costs apart from its bytes does not show with 4 KiB
// pages.
constexpr BatchLimits kUnpacedLimits{.max_runs = 1024, .max_bytes = std::size_t{8} << 20, .max_in_flight = 2};

// NOLINTNEXTLINE(performance-no-int-to-ptr): runs name memory by address
std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// With a link, a batch is half a millisecond of it, and eight are queued, about what a card holds.
BatchLimits paced_limits(double gbps) {
  const auto half_millisecond = static_cast<std::size_t>(gbps * 1e9 / 8 * 0.5e-3);
  BatchLimits limits = kUnpacedLimits;
  limits.max_bytes = std::clamp(half_millisecond, std::size_t{64} << 10, kUnpacedLimits.max_bytes);
  limits.max_in_flight = 8;
  return limits;
}

// Role: Transport over memory that processes of one machine share; the progress thread copies.
// Ordering: a batch's bytes are in place when post returns. With a link it stays in flight until the modelled link has
//   sent it, so nobody is told earlier than a real link would allow.
class HostTransport final : public Transport {
 public:
  HostTransport(std::optional<LinkPacer> pacer, BatchLimits limits) : pacer_(pacer), limits_(limits) {}

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  PeerState poll_peer(PeerId peer, Status* error) override;
  void remove_peer(PeerId peer) override { peers_.erase(peer); }
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override;
  std::vector<Region> peer_regions(PeerId peer) const override;
  BatchLimits limits() const override { return limits_; }
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override;
  BatchResult poll(BatchId batch) override;
  void take_drained(std::vector<BatchId>*) override {}
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  int wait_fd() const override { return epoll_.get(); }
  bool close() override;

 private:
  struct Paced {
    PeerId peer;
    TimePoint leaves_at;
  };

  static BatchResult failed(Status error) { return {BatchState::kFailed, false, std::move(error)}; }

  // Members end in reverse order: sockets before the memory they hand over, epoll last.
  UniqueFd epoll_;
  std::vector<SharedMapping> mappings_;
  std::vector<int> descriptors_;  // of mappings_
  RegionSet regions_;
  std::optional<HostListener> listener_;
  std::unordered_map<PeerId, HostPeer> peers_;
  std::optional<LinkPacer> pacer_;
  BatchLimits limits_;
  std::unordered_map<BatchId, Paced> paced_;
  std::vector<PageCopy> copies_;  // kept for its capacity
  // When the last batch that poll saw off had left the link. What is posted before the thread sleeps again was waiting
  // for that moment, so the link goes on from there: a card would not have paused because this thread was scheduled
  // late.
  mutable std::optional<TimePoint> link_idle_since_;
};

Status HostTransport::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  listener_.emplace(epoll_.get(), &descriptors_);
  return listener_->open();
}

Status HostTransport::allocate_region(std::size_t size, Region* out) {
  if (mappings_.size() == kMaxHostRegions) {
    return Status(StatusCode::kResource, "a host agent has at most " + std::to_string(kMaxHostRegions) + " regions");
  }
  SharedMapping mapping;
  Status status = SharedMapping::create(size, &mapping);
  if (!status.is_ok()) return status;
  if (!regions_.add({mapping.base(), size}))
    return Status(StatusCode::kInternal, "the kernel mapped regions that overlap");
  *out = Region{mapping.base(), size, MemoryKind::kHost, -1};
  descriptors_.push_back(mapping.fd());
  mappings_.push_back(std::move(mapping));
  return Status::ok();
}

Status HostTransport::metadata(std::vector<std::byte>* out) {
  HostMetadata metadata;
  Status status = read_boot_id(&metadata.boot_id);
  if (!status.is_ok()) return status;
  metadata.token = listener_->token();
  metadata.socket_name = listener_->socket_name();
  metadata.regions = regions_.ranges();
  *out = encode_host_metadata(metadata);
  return Status::ok();
}

Status HostTransport::begin_add_peer(PeerId peer, std::span<const std::byte> metadata) {
  HostMetadata decoded;
  Status status = decode_host_metadata(metadata, &decoded);
  if (!status.is_ok()) return status;
  std::array<std::byte, 16> boot_id{};
  status = read_boot_id(&boot_id);
  if (!status.is_ok()) return status;
  if (boot_id != decoded.boot_id) {
    return Status(
        StatusCode::kCapability,
        "the peer runs on another machine, and the host agent works on one; use the nixl agent on both sides");
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + kConnectLimit;
  const auto [entry, is_new] =
      peers_.try_emplace(peer, std::move(decoded), epoll_.get(), HostListener::kFirstForeignEvent | peer, deadline);
  if (!is_new) return Status(StatusCode::kInternal, "peer id " + std::to_string(peer) + " is in use");
  return Status::ok();
}

PeerState HostTransport::poll_peer(PeerId peer, Status* error) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) {
    *error = Status(StatusCode::kState, "unknown peer " + std::to_string(peer));
    return PeerState::kFailed;
  }
  entry->second.advance(std::chrono::steady_clock::now());
  if (entry->second.state() == PeerState::kFailed) *error = entry->second.error();
  return entry->second.state();
}

bool HostTransport::peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const {
  const auto entry = peers_.find(peer);
  return entry != peers_.end() && entry->second.regions().contains(address, size);
}

std::vector<Region> HostTransport::peer_regions(PeerId peer) const {
  std::vector<Region> out;
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return out;
  for (const MemoryRange& range : entry->second.regions().ranges()) out.push_back({range.base, range.size});
  return out;
}

BatchResult HostTransport::post(BatchId batch, PeerId peer, std::span<const Run> runs) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end() || entry->second.state() == PeerState::kConnecting) {
    return failed(Status(StatusCode::kState, "peer " + std::to_string(peer) + " is not ready"));
  }
  HostPeer& to = entry->second;
  if (!to.check_alive()) return failed(to.error());

  const TimePoint now = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  copies_.clear();
  for (const Run& run : runs) {
    const std::uintptr_t destination = to.translate(run.destination, run.bytes);
    if (destination == 0 || !regions_.contains(run.source, run.bytes)) {
      return failed(Status(StatusCode::kInvalidArgument, "a run leaves the memory that its side registered"));
    }
    copies_.push_back({at(destination), at(run.source), run.bytes});
    bytes += run.bytes;
  }
  copy_pages(copies_);
  publish_copies();
  // Asked again: bytes that were copied while the peer died arrived nowhere.
  if (!to.check_alive()) return failed(to.error());
  if (!pacer_) return {BatchState::kDone, false, {}};
  paced_.emplace(batch, Paced{peer, pacer_->enqueue(link_idle_since_.value_or(now), bytes)});
  return {BatchState::kInFlight, false, {}};
}

BatchResult HostTransport::poll(BatchId batch) {
  const auto entry = paced_.find(batch);
  if (entry == paced_.end()) return failed(Status(StatusCode::kInternal, "unknown batch " + std::to_string(batch)));
  const auto peer = peers_.find(entry->second.peer);
  if (peer == peers_.end() || !peer->second.check_alive()) {
    paced_.erase(entry);
    return failed(peer == peers_.end() ? Status(StatusCode::kPeerLost, "the peer was removed") : peer->second.error());
  }
  const TimePoint left_at = entry->second.leaves_at;
  if (std::chrono::steady_clock::now() < left_at) return {BatchState::kInFlight, false, {}};
  if (!link_idle_since_ || *link_idle_since_ < left_at) link_idle_since_ = left_at;
  paced_.erase(entry);
  return {BatchState::kDone, false, {}};
}

void HostTransport::progress() {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  const TimePoint now = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t event = events[static_cast<std::size_t>(i)].data.u64;
    if (event < HostListener::kFirstForeignEvent) {
      listener_->on_event(event);
      continue;
    }
    const auto peer = peers_.find(static_cast<PeerId>(event & ~HostListener::kFirstForeignEvent));
    if (peer != peers_.end()) peer->second.advance(now);
  }
  listener_->drop_expired(now);
}

std::optional<TimePoint> HostTransport::next_wakeup(TimePoint now) const {
  link_idle_since_.reset();
  std::optional<TimePoint> earliest = listener_->next_deadline();
  const auto consider = [&earliest](std::optional<TimePoint> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  for (const auto& [id, peer] : peers_) consider(peer.next_wakeup(now));
  for (const auto& [id, paced] : paced_) consider(paced.leaves_at);
  return earliest;
}

bool HostTransport::close() {
  // Copies end with post, so nothing of this agent can touch memory any more, whatever the modelled link still holds.
  paced_.clear();
  peers_.clear();
  listener_.reset();
  mappings_.clear();
  return true;
}

}  // namespace

std::unique_ptr<Transport> make_host_transport(const HostOptions& options, Status* error) {
  *error = Status::ok();
  if (!options.link_gbps) return std::make_unique<HostTransport>(std::nullopt, kUnpacedLimits);
  LinkPacer pacer;
  *error = LinkPacer::create(*options.link_gbps, &pacer);
  if (!error->is_ok()) return nullptr;
  return std::make_unique<HostTransport>(pacer, paced_limits(*options.link_gbps));
}

}  // namespace kvt
