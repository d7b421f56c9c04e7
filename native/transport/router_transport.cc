#include "transport/router_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/unique_fd.h"
#include "transport/bounce_metadata.h"
#include "transport/copy_advice.h"
#include "transport/device_paths.h"
#include "transport/note_lane.h"
#include "transport/process_watch.h"
#include "transport/router_metadata.h"

namespace kvt {
namespace {

constexpr std::uint64_t kChildEvent = 0;

struct Peer {
  std::string called = "a peer";
  bool has_device_memory = false;
  // Whether the p2p transport was given it and has not been told to forget it.
  bool is_at_p2p = false;
  PeerPaths paths;
};

// Role: Transport over others; see router_transport.h.
// Ordering: close() ends the base transport first, whose registrations cover the pools of the others.
class RouterTransport final : public Transport {
 public:
  RouterTransport(std::unique_ptr<Transport> base, const RouterOptions& options)
      : options_(options), base_(std::move(base)), devices_(base_.get(), options) {}

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override { return base_->allocate_region(size, out); }
  Status allocate_device_region(int device, std::size_t size, Region* out) override;
  Status register_region(const Region& region) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  void name_peer(PeerId peer, const std::string& name) override;
  PeerState poll_peer(PeerId peer, Status* error) override;
  void remove_peer(PeerId peer) override;
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override;
  std::vector<Region> peer_regions(PeerId peer) const override;
  PeerPaths peer_paths(PeerId peer) const override;
  BatchLimits limits() const override { return base_->limits(); }
  SliceRoute route(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const override;
  // Runs are the base transport's, which knows their batches when it is asked.
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override {
    return base_->post(batch, peer, runs);
  }
  BatchResult post_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                         const CudaEvent* after) override;
  void cancel(BatchId batch) override;
  Status expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) override {
    return base_->expect_inbound(peer, ticket, std::move(groups));
  }
  bool end_inbound(PeerId peer, Ticket ticket) override { return base_->end_inbound(peer, ticket); }
  BatchResult poll(BatchId batch) override;
  void take_released(std::vector<BatchId>* out) override { base_->take_released(out); }
  void take_drained(std::vector<BatchId>* out) override;
  Status watch_process(WatchId watch, std::span<const std::byte> metadata) override;
  void unwatch_process(WatchId watch) override;
  void take_ended(std::vector<WatchId>* out) override;
  Status flush_inbound() override { return devices_.flush_inbound(); }
  void announce_note(PeerId peer, std::span<const std::byte> note) override {
    if (lane_) lane_->announce(peer, note);
  }
  bool send_note(PeerId peer, std::span<const std::byte> note) override { return lane_ && lane_->send(peer, note); }
  void take_notes(std::vector<InboundNote>* out) override;
  void take_advice(std::vector<std::string>* out) override;
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  int wait_fd() const override { return epoll_.get(); }
  bool is_at_rest() const override { return base_->is_at_rest(); }
  bool close() override;

 private:
  Transport* p2p() const { return devices_.p2p(); }
  Status open_device(int device);
  Status watch_child(int fd) const;
  // By the first piece: what JS submits is of one kind.
  bool is_device_slice(std::span<const PlanGroup> groups) const;
  // Of a slice to a peer that was added; kHost stands for what the base transport does itself.
  DataPath path_to(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const;
  // Of a slice that NIXL sends in many small pieces although an arena would pack them.
  void advise_of_descriptors(PeerId peer, std::span<const PlanGroup> groups) const;
  void take_p2p(PeerId id, Peer* peer);
  void refuse_p2p(PeerId id, Peer* peer, std::string why);
  PeerState decide(PeerId id, Peer* peer, Status* error);

  RouterOptions options_;
  UniqueFd epoll_;
  std::optional<ProcessWatcher> watcher_;
  std::unique_ptr<Transport> base_;
  DevicePaths devices_;
  std::unordered_map<PeerId, Peer> peers_;
  std::unordered_map<BatchId, Transport*> batches_;  // in flight, by who has them
  std::vector<std::string> advice_;
  // What a slice is routed by it may also be told of.
  mutable CopyAdvice copy_advice_;
  std::optional<NoteLane> lane_;  // none: this agent sends and takes no notes
  std::vector<InboundNote> notes_;
};

Status RouterTransport::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  watcher_.emplace(epoll_.get());
  // Before the base transport: UCX looks for a current context when it starts.
  if (options_.device) {
    Status status = open_device(*options_.device);
    if (!status.is_ok()) return status;
  }
  Status status = base_->open();
  if (status.is_ok()) status = watch_child(base_->wait_fd());
  if (!status.is_ok() || options_.notes == nullptr) return status;
  lane_.emplace(options_.notes);
  Status laid = lane_->open();
  if (laid.is_ok()) laid = watch_child(lane_->wait_fd());
  if (!laid.is_ok()) {
    advice_.push_back("reports to peers of this machine go by the control plane alone: " + laid.message());
    lane_.reset();
  }
  return status;
}

Status RouterTransport::watch_child(int fd) const {
  if (fd < 0) return Status::ok();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kChildEvent;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::ok();
  return Status(StatusCode::kResource, std::string("epoll_ctl failed: ") + std::strerror(errno));
}

Status RouterTransport::open_device(int device) {
  const bool was_open = devices_.is_open();
  Status status = devices_.open(device);
  if (!status.is_ok() || was_open || p2p() == nullptr) return status;
  return watch_child(p2p()->wait_fd());
}

Status RouterTransport::allocate_device_region(int device, std::size_t size, Region* out) {
  Status status = open_device(device);
  return status.is_ok() ? devices_.allocate(device, size, out) : status;
}

Status RouterTransport::register_region(const Region& region) {
  if (region.kind != MemoryKind::kDevice) return base_->register_region(region);
  Status status = open_device(region.device);
  return status.is_ok() ? devices_.register_region(region) : status;
}

Status RouterTransport::metadata(std::vector<std::byte>* out) {
  RouterMetadata made;
  std::vector<std::byte> below;
  Status status = base_->metadata(&below);
  std::span<const std::byte> base = below;
  if (status.is_ok() && base_->has_bounce_head()) status = unwrap_bounce_metadata(below, &base, nullptr);
  if (status.is_ok() && p2p() != nullptr) status = p2p()->metadata(&made.p2p);
  if (!status.is_ok()) return status;
  made.more.assign(below.begin(), below.end() - static_cast<std::ptrdiff_t>(base.size()));
  made.base.assign(base.begin(), base.end());
  // Without it peers cannot tell when this process has ended; everything else works.
  if (Status identity = own_identity(&made.process); !identity.is_ok()) advice_.push_back(identity.message());
  if (lane_) made.note_lane = lane_->id();
  *out = encode_router_metadata(made);
  return Status::ok();
}

Status RouterTransport::begin_add_peer(PeerId id, std::span<const std::byte> metadata) {
  RouterMetadata decoded;
  Status status = decode_router_metadata(metadata, &decoded);
  if (!status.is_ok()) return status;
  // Agents without an arena have no use for the head of one that has.
  if (base_->has_bounce_head()) decoded.base.insert(decoded.base.begin(), decoded.more.begin(), decoded.more.end());
  status = base_->begin_add_peer(id, decoded.base);
  if (!status.is_ok()) return status;
  if (lane_) lane_->add_peer(id, decoded.note_lane, decoded.process);
  Peer& peer = peers_[id];
  peer.has_device_memory = !decoded.p2p.empty();
  peer.paths.bounce.reason = "this agent has no bounce arena; set kvCacheBounceSizeMb on both sides";
  if (p2p() == nullptr) {
    peer.paths.p2p.reason = devices_.why_no_p2p();
  } else if (decoded.p2p.empty()) {
    peer.paths.p2p.reason = "the peer offers no device memory to map";
  } else {
    status = p2p()->begin_add_peer(id, decoded.p2p);
    peer.is_at_p2p = status.is_ok();
    if (!status.is_ok()) peer.paths.p2p.reason = status.message();
  }
  return Status::ok();
}

void RouterTransport::name_peer(PeerId id, const std::string& name) {
  base_->name_peer(id, name);
  if (p2p() != nullptr) p2p()->name_peer(id, name);
  copy_advice_.name_peer(id, name);
  const auto entry = peers_.find(id);
  if (entry != peers_.end() && !name.empty()) entry->second.called = "peer " + name;
}

void RouterTransport::take_p2p(PeerId id, Peer* peer) {
  if (peer->paths.p2p.is_available) return;
  const PeerPaths found = p2p()->peer_paths(id);
  peer->paths.p2p = {true, found.p2p.reason};
  peer->paths.link = found.link;
  peer->paths.has_bulk_kernel = found.has_bulk_kernel;
  peer->paths.copy_blocks = found.copy_blocks;
  if (found.link != GpuLink::kPcie) return;
  advice_.push_back(
      peer->called +
      ": its GPU is reached over PCIe, which carries a tenth of what NVLink does and is shared with every "
      "other traffic of the slot; give both sides GPUs that NVLink joins (nvidia-smi topo -m)");
}

void RouterTransport::refuse_p2p(PeerId id, Peer* peer, std::string why) {
  peer->paths.p2p = {false, std::move(why)};
  p2p()->remove_peer(id);
  peer->is_at_p2p = false;
}

PeerState RouterTransport::poll_peer(PeerId id, Status* error) {
  const PeerState state = base_->poll_peer(id, error);
  const auto entry = peers_.find(id);
  if (state != PeerState::kReady || entry == peers_.end()) return state;
  Peer& peer = entry->second;
  if (peer.is_at_p2p) {
    Status why;
    switch (p2p()->poll_peer(id, &why)) {
      case PeerState::kConnecting:
        return PeerState::kConnecting;
      case PeerState::kReady:
        take_p2p(id, &peer);
        break;
      case PeerState::kFailed:
        refuse_p2p(id, &peer, why.message());
        break;
    }
  }
  if (const PeerPaths below = base_->peer_paths(id); !below.bounce.reason.empty()) {
    peer.paths.bounce = below.bounce;
    peer.paths.bounces_device = below.bounces_device;
    peer.paths.has_near_frames = below.has_near_frames;
  }
  return decide(id, &peer, error);
}

PeerState RouterTransport::decide(PeerId id, Peer* peer, Status* error) {
  const std::vector<Region> regions = base_->peer_regions(id);
  const bool is_published = std::any_of(regions.begin(), regions.end(),
                                        [](const Region& region) { return region.kind == MemoryKind::kDevice; });
  peer->has_device_memory = peer->has_device_memory || is_published;
  PathState& rdma = peer->paths.rdma;
  const PathState& bounce = peer->paths.bounce;
  if (options_.choice == PathChoice::kBounce && !bounce.is_available) {
    *error = Status(StatusCode::kCapability, "path 'bounce' was asked for: " + bounce.reason);
    return PeerState::kFailed;
  }
  if (options_.choice == PathChoice::kP2p) {
    rdma.reason = "path 'p2p' was asked for";
  } else if (options_.choice == PathChoice::kBounce) {
    rdma.reason = "path 'bounce' was asked for";
  } else if (!devices_.is_open()) {
    rdma.reason = "this agent has no device memory";
  } else if (!devices_.base_reaches_pools()) {
    rdma.reason = devices_.why_no_rdma();
  } else if (!is_published) {
    rdma.reason = "the peer registered no device memory with NIXL";
  } else {
    const std::string measured = base_->measured_speed(id, MemoryKind::kDevice);
    rdma = {true, "NIXL over UCX, one descriptor per contiguous run" + (measured.empty() ? "" : "; " + measured)};
  }
  peer->paths.host_speed = base_->measured_speed(id, MemoryKind::kHost);
  if (!devices_.is_open() || !peer->has_device_memory || peer->paths.p2p.is_available) return PeerState::kReady;
  if (!rdma.is_available) {
    // Device memory is sent under a ticket, always.
    if (bounce.is_available && peer->paths.bounces_device) return PeerState::kReady;
    *error =
        Status(StatusCode::kCapability,
               "no path leads to the peer's device memory; p2p: " + peer->paths.p2p.reason + "; rdma: " + rdma.reason +
                   "; bounce: " + (bounce.is_available ? "the arena is host memory" : bounce.reason));
    return PeerState::kFailed;
  }
  if (options_.choice == PathChoice::kAuto) {
    advice_.push_back(peer->called + ": its device memory is reached by NIXL, not by p2p: " + peer->paths.p2p.reason);
  }
  return PeerState::kReady;
}

void RouterTransport::take_notes(std::vector<InboundNote>* out) {
  for (InboundNote& note : notes_) out->push_back(std::move(note));
  notes_.clear();
}

void RouterTransport::remove_peer(PeerId id) {
  base_->remove_peer(id);
  copy_advice_.remove_peer(id);
  if (lane_) lane_->remove_peer(id);
  // Also one that p2p does not reach: it was told its name.
  if (p2p() != nullptr) p2p()->remove_peer(id);
  const auto entry = peers_.find(id);
  if (entry == peers_.end()) return;
  peers_.erase(entry);
}

bool RouterTransport::peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const {
  return base_->peer_owns(peer, address, size) || (p2p() != nullptr && p2p()->peer_owns(peer, address, size));
}

std::vector<Region> RouterTransport::peer_regions(PeerId peer) const {
  std::vector<Region> out = base_->peer_regions(peer);
  if (p2p() == nullptr) return out;
  for (const Region& region : p2p()->peer_regions(peer)) {
    const auto is_same = [&region](const Region& known) { return known.base == region.base; };
    if (std::none_of(out.begin(), out.end(), is_same)) out.push_back(region);
  }
  return out;
}

PeerPaths RouterTransport::peer_paths(PeerId peer) const {
  const auto entry = peers_.find(peer);
  return entry == peers_.end() ? PeerPaths{} : entry->second.paths;
}

bool RouterTransport::is_device_slice(std::span<const PlanGroup> groups) const {
  for (const PlanGroup& group : groups) {
    if (group.table->fragments().empty()) continue;
    return devices_.regions().find(group.table->fragments().front().source.base, 1) != nullptr;
  }
  return false;
}

DataPath RouterTransport::path_to(PeerId id, Ticket ticket, std::span<const PlanGroup> groups) const {
  const auto entry = peers_.find(id);
  if (entry == peers_.end()) return DataPath::kHost;
  const bool can_bounce = ticket != 0 && options_.bounce;
  return path_of_slice(entry->second.paths, is_device_slice(groups), groups, can_bounce ? &*options_.bounce : nullptr);
}

SliceRoute RouterTransport::route(PeerId id, Ticket ticket, std::span<const PlanGroup> groups) const {
  const DataPath path = path_to(id, ticket, groups);
  if (path == DataPath::kP2p) return p2p()->route(id, ticket, groups);
  // The bounce path takes what is given to it under a ticket, and nothing else.
  const SliceRoute route = base_->route(id, path == DataPath::kBounce ? ticket : 0, groups);
  if (options_.base_reaches_devices && !route.is_whole) advise_of_descriptors(id, groups);
  return route;
}

void RouterTransport::advise_of_descriptors(PeerId id, std::span<const PlanGroup> groups) const {
  const auto entry = peers_.find(id);
  if (entry == peers_.end() || options_.choice == PathChoice::kRdma) return;
  const PeerPaths& paths = entry->second.paths;
  if (paths.bounce.is_available && paths.bounces_device == is_device_slice(groups)) return;
  if (copy_advice_.has_told(id, CopyAdvice::Cause::kDescriptors) || !is_for_an_arena(shape_of(groups))) return;
  copy_advice_.tell(id, CopyAdvice::Cause::kDescriptors, {.path = DataPath::kRdma}, groups);
}

BatchResult RouterTransport::post_slice(BatchId id, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                                        const CudaEvent* after) {
  const DataPath path = path_to(peer, ticket, groups);
  Transport* const transport = path == DataPath::kP2p ? p2p() : base_.get();
  BatchResult result = transport->post_slice(id, peer, path == DataPath::kBounce ? ticket : 0, groups, after);
  if (result.state == BatchState::kInFlight) batches_.emplace(id, transport);
  return result;
}

void RouterTransport::cancel(BatchId id) {
  const auto entry = batches_.find(id);
  if (entry != batches_.end()) entry->second->cancel(id);
}

BatchResult RouterTransport::poll(BatchId id) {
  const auto entry = batches_.find(id);
  if (entry == batches_.end()) return base_->poll(id);
  BatchResult result = entry->second->poll(id);
  if (result.state != BatchState::kInFlight) batches_.erase(entry);
  return result;
}

void RouterTransport::take_drained(std::vector<BatchId>* out) {
  base_->take_drained(out);
  if (p2p() != nullptr) p2p()->take_drained(out);
}

Status RouterTransport::watch_process(WatchId watch, std::span<const std::byte> metadata) {
  RouterMetadata decoded;
  Status status = decode_router_metadata(metadata, &decoded);
  if (status.is_ok()) status = watcher_->add(watch, decoded.process);
  if (status.is_ok() && lane_) lane_->hear(watch, decoded.note_lane, decoded.process);
  return status;
}

void RouterTransport::unwatch_process(WatchId watch) {
  watcher_->remove(watch);
  if (lane_) lane_->ignore(watch);
}

void RouterTransport::take_ended(std::vector<WatchId>* out) {
  const std::size_t before = out->size();
  watcher_->take_ended(std::chrono::steady_clock::now(), out);
  if (!lane_) return;
  for (std::size_t i = before; i < out->size(); ++i) lane_->ignore((*out)[i]);
}

void RouterTransport::take_advice(std::vector<std::string>* out) {
  base_->take_advice(out);
  devices_.take_advice(out);
  copy_advice_.take(out);
  std::vector<NoteLane::Silence> silences;
  if (lane_) lane_->take_silences(&silences);
  for (const NoteLane::Silence& silence : silences) {
    const auto peer = silence.peer ? peers_.find(*silence.peer) : peers_.end();
    out->push_back(peer == peers_.end() ? silence.why : peer->second.called + ": " + silence.why);
  }
  for (std::string& text : advice_) {
    out->push_back(std::move(text));
  }
  advice_.clear();
}

void RouterTransport::progress() {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  const TimePoint now = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t event = events[static_cast<std::size_t>(i)].data.u64;
    // What its children have to say they hear below.
    if (event != kChildEvent) watcher_->on_event(event & ~ProcessWatcher::kEventBit, now);
  }
  base_->progress();
  if (p2p() != nullptr) p2p()->progress();
  if (lane_) lane_->progress(now, &notes_);
}

std::optional<TimePoint> RouterTransport::next_wakeup(TimePoint now) const {
  std::optional<TimePoint> earliest = base_->next_wakeup(now);
  const auto consider = [&earliest](std::optional<TimePoint> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  if (p2p() != nullptr) consider(p2p()->next_wakeup(now));
  consider(watcher_->next_deadline());
  if (lane_) consider(lane_->next_wakeup(now));
  return earliest;
}

bool RouterTransport::close() {
  lane_.reset();
  // A base that may still write through its registrations keeps the pools as they are.
  if (!base_->close()) {
    devices_.abandon();
    return false;
  }
  return devices_.close();
}

}  // namespace

DataPath path_of_slice(const PeerPaths& paths, bool is_device, std::span<const PlanGroup> groups,
                       const BounceThresholds* bounce) {
  const bool can_bounce = bounce != nullptr && paths.bounce.is_available && paths.bounces_device == is_device;
  const auto passes_thresholds = [&] { return can_bounce && is_worth_bouncing(groups, *bounce); };
  if (!is_device) return passes_thresholds() ? DataPath::kBounce : DataPath::kHost;
  const SliceShape shape = shape_of(groups);
  const auto costs_less = [&](DataPath one, DataPath other) {
    return estimate_us(one, shape, paths.link) < estimate_us(other, shape, paths.link);
  };
  // What it takes without p2p comes first: p2p is compared to what would really be taken.
  DataPath below = DataPath::kRdma;
  if (can_bounce) {
    const bool is_bounced =
        !paths.rdma.is_available ||
        (bounce->rule == BounceRule::kCost ? costs_less(DataPath::kBounce, DataPath::kRdma) : passes_thresholds());
    if (is_bounced) below = DataPath::kBounce;
  }
  if (!paths.p2p.is_available) return below;
  const bool has_other = below == DataPath::kBounce || paths.rdma.is_available;
  return has_other && costs_less(below, DataPath::kP2p) ? below : DataPath::kP2p;
}

std::unique_ptr<Transport> make_router_transport(std::unique_ptr<Transport> base, const RouterOptions& options) {
  return std::make_unique<RouterTransport>(std::move(base), options);
}

}  // namespace kvt
