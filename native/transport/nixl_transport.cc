#include "transport/nixl_transport.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "transport/nixl_agent.h"
#include "transport/nixl_cadence.h"
#include "transport/nixl_envelope.h"
#include "transport/nixl_memory.h"
#include "transport/nixl_probe.h"
#include "transport/nixl_quarantine.h"
#include "transport/nixl_speed.h"
#include "transport/region_table.h"

namespace kvt {
namespace {

using nixl::NixlAgent;
using nixl::XferReq;

// Copies between host pools happen inside post, at 2 to 8 GB/s, so that the limits are a bound on the time one post
// takes: about half a millisecond on shared memory.
constexpr BatchLimits kHostLimits{.max_runs = 128, .max_bytes = std::size_t{4} << 20, .max_in_flight = 4};

// Over a GPU's own link the poster is held up 3.5 us for each descriptor and not for its bytes (two H200, cuda_ipc), so
// that few descriptors and many bytes bound the same time.
constexpr BatchLimits kDeviceLimits{.max_runs = 64, .max_bytes = std::size_t{128} << 20, .max_in_flight = 4};

// Names are kept to refuse a lost incarnation; the bound only keeps a year of restarts from growing the list.
constexpr std::size_t kMaxLostNames = 4096;

enum class AgentPhase : std::uint8_t {
  kNew,
  kOpen,
  kClosed,
  // Closed while something might still land: agent, registrations and memory stay for the rest of the process.
  kAbandoned,
};

enum class PeerPhase : std::uint8_t {
  kReady,
  // Its connection failed. No new work; torn down when its last batch has ended.
  kLost,
  // remove_peer came while batches were in flight; torn down and forgotten when the last has ended.
  kLeaving,
  // Was lost, and holds nothing of NIXL any more; remembered until remove_peer.
  kTornDown,
};

struct Peer {
  std::string name;
  RegionTable regions;
  PeerPhase phase = PeerPhase::kReady;
  std::size_t in_flight = 0;
  // Why it was lost.
  Status error;
};

struct Batch {
  PeerId peer = 0;
  XferReq request = nullptr;
  MemoryKind kind = MemoryKind::kHost;
  std::size_t bytes = 0;
  std::size_t runs = 0;
};

// NIXL's C API throws nothing, so that what arrives here is our own allocation failing.
Status from_exception(const std::exception& error) {
  return {StatusCode::kInternal, std::string("nixl transport: ") + error.what()};
}

BatchResult failed(StatusCode code, std::string message) {
  return {.state = BatchState::kFailed, .may_still_land = false, .error = Status(code, std::move(message))};
}

// Role: Transport over one NIXL agent.
// Threading: one thread; NIXL runs without locks and without a thread of its own.
// Ownership: the mapped regions, until close() proves that nothing can touch them; an abandoned agent keeps them.
// Ordering: requests released, peers invalidated, regions deregistered, agent destroyed, memory unmapped.
class NixlTransport final : public Transport {
 public:
  NixlTransport(const nixl::Library& library, NixlOptions options)
      : options_(std::move(options)), agent_(library, options_.agent_name) {}

  ~NixlTransport() override { (void)NixlTransport::close(); }

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override;
  Status register_region(const Region& region) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  void name_peer(PeerId peer, const std::string& name) override { speed_.name_peer(peer, name); }
  PeerState poll_peer(PeerId peer, Status* error) override;
  std::string measured_speed(PeerId peer, MemoryKind kind) const override { return speed_.measured(peer, kind); }
  void take_advice(std::vector<std::string>* out) override { speed_.take_advice(out); }
  bool is_at_rest() const override { return probes_.is_idle(); }
  void remove_peer(PeerId peer) override;
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override;
  std::vector<Region> peer_regions(PeerId peer) const override;
  BatchLimits limits() const override { return kHostLimits; }
  BatchLimits device_limits() const override { return kDeviceLimits; }
  SliceRoute route(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const override;
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override;
  BatchResult poll(BatchId batch) override;
  void take_drained(std::vector<BatchId>* out) override;
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  Status send_message(PeerId peer, std::span<const std::byte> bytes) override;
  void take_messages(std::vector<Message>* out) override;
  bool close() override;

 private:
  struct Mapping {
    Region region;
    std::size_t mapped_size = 0;
  };

  Status require_open() const;
  Status add_peer(PeerId peer, std::span<const std::byte> metadata);
  Status check_new_name(const std::string& name) const;
  bool is_connected(const std::string& name) const;
  BatchResult start(BatchId batch, PeerId peer_id, Peer* peer, std::span<const Run> runs);
  Status place(const Peer& peer, std::span<const Run> runs, std::vector<NixlAgent::PlacedRun>* placed) const;
  BatchResult settle(BatchId batch, int code, const char* action);
  Status explain_failure(Peer* peer, int code, const char* action);
  void end_batch(BatchId batch, PeerId peer_id);
  void tear_down_if_idle(PeerId peer_id);
  void release_memory();
  // Registers memory for probes of the kinds that the agent uses by now.
  void offer_probes();
  void offer_probe(MemoryKind kind, int device);

  const NixlOptions options_;
  NixlAgent agent_;
  AgentPhase phase_ = AgentPhase::kNew;
  std::vector<Mapping> mappings_;
  std::vector<Region> borrowed_;  // registered, owned by others
  RegionTable regions_;
  std::unordered_map<PeerId, Peer> peers_;
  std::unordered_map<BatchId, Batch> batches_;
  nixl::Quarantine quarantine_;
  std::deque<std::string> lost_names_;
  nixl::Cadence cadence_;
  nixl::ProbeMemory probe_memory_;
  nixl::SpeedWatch speed_;
  nixl::PeerProbes probes_{this};
  std::vector<NixlAgent::Notification> notifications_;
  // Whether somebody takes messages; until then they are thrown away.
  bool has_reader_ = false;
  // From metadata() on, processes that this side never added may write here and need it driven.
  bool is_published_ = false;
};

Status NixlTransport::require_open() const {
  if (phase_ == AgentPhase::kOpen) return Status::ok();
  return {StatusCode::kState, "the nixl transport is not open"};
}

Status NixlTransport::open() {
  if (phase_ != AgentPhase::kNew) return {StatusCode::kState, "the nixl transport was opened before"};
  Status status = agent_.open();
  if (status.is_ok()) phase_ = AgentPhase::kOpen;
  return status;
}

Status NixlTransport::allocate_region(std::size_t size, Region* out) try {
  if (Status status = require_open(); !status.is_ok()) return status;
  Mapping mapping;
  mapping.region.size = size;
  if (Status status = nixl::map_resident(size, &mapping.region.base, &mapping.mapped_size); !status.is_ok())
    return status;
  if (Status status = agent_.register_region(mapping.region); !status.is_ok()) {
    nixl::unmap(mapping.region.base, mapping.mapped_size);
    return status;
  }
  mappings_.push_back(mapping);
  if (!regions_.add(mapping.region)) return {StatusCode::kInternal, "the kernel mapped regions that overlap"};
  *out = mapping.region;
  return Status::ok();
} catch (const std::exception& error) {
  return from_exception(error);
}

Status NixlTransport::register_region(const Region& region) try {
  if (Status status = require_open(); !status.is_ok()) return status;
  if (regions_.overlaps(region)) {
    return {StatusCode::kInvalidArgument, "the memory overlaps a region that the agent has already"};
  }
  if (Status status = agent_.register_region(region); !status.is_ok()) return status;
  if (!regions_.add(region)) {
    (void)agent_.deregister_region(region);
    return {StatusCode::kInvalidArgument, "the memory is empty, or leaves the address space"};
  }
  borrowed_.push_back(region);
  return Status::ok();
} catch (const std::exception& error) {
  return from_exception(error);
}

SliceRoute NixlTransport::route(PeerId, Ticket, std::span<const PlanGroup> groups) const {
  SliceRoute route{false, kHostLimits, static_cast<std::uint8_t>(DataPath::kHost)};
  if (groups.empty() || groups.front().table->fragments().empty()) return route;
  const Fragment& first = groups.front().table->fragments().front();
  const Region* source = regions_.find(first.source.base, 1);
  if (source == nullptr || source->kind == MemoryKind::kHost) return route;
  return {false, kDeviceLimits, static_cast<std::uint8_t>(DataPath::kRdma)};
}

Status NixlTransport::metadata(std::vector<std::byte>* out) try {
  if (Status status = require_open(); !status.is_ok()) return status;
  offer_probes();
  nixl::Envelope envelope{.name = options_.agent_name, .regions = regions_, .probes = probe_memory_.all(), .blob = {}};
  if (Status status = agent_.local_metadata(&envelope.blob); !status.is_ok()) return status;
  if (Status status = nixl::encode_envelope(envelope, out); !status.is_ok()) return status;
  is_published_ = true;
  cadence_.touch(std::chrono::steady_clock::now());
  return Status::ok();
} catch (const std::exception& error) {
  return from_exception(error);
}

bool NixlTransport::is_connected(const std::string& name) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return entry.second.phase != PeerPhase::kTornDown && entry.second.name == name;
  });
}

Status NixlTransport::check_new_name(const std::string& name) const {
  if (name == options_.agent_name) {
    return {StatusCode::kTransport, "the peer's metadata is this agent's own"};
  }
  if (is_connected(name)) return {StatusCode::kState, "peer " + name + " is connected already; remove it first"};
  if (std::find(lost_names_.begin(), lost_names_.end(), name) != lost_names_.end()) {
    return {StatusCode::kPeerLost, "peer " + name + " was lost; it can come back only as a new agent with a new name"};
  }
  return Status::ok();
}

Status NixlTransport::begin_add_peer(PeerId peer, std::span<const std::byte> metadata) try {
  if (Status status = require_open(); !status.is_ok()) return status;
  return add_peer(peer, metadata);
} catch (const std::exception& error) {
  return from_exception(error);
}

Status NixlTransport::add_peer(PeerId peer, std::span<const std::byte> metadata) {
  if (peers_.contains(peer)) return {StatusCode::kState, "peer id " + std::to_string(peer) + " is in use"};
  nixl::Envelope envelope;
  if (Status status = nixl::decode_envelope(metadata, &envelope); !status.is_ok()) return status;
  if (Status status = check_new_name(envelope.name); !status.is_ok()) return status;
  std::string loaded;
  if (Status status = agent_.load_remote(envelope.blob, &loaded); !status.is_ok()) return status;
  if (loaded != envelope.name) {
    // Never drop a remote that another peer id stands for: that would let one peer cut off another.
    if (!is_connected(loaded)) agent_.invalidate_remote(loaded);
    return {StatusCode::kTransport, "the peer's metadata names two agents, " + envelope.name + " and another"};
  }
  offer_probes();
  speed_.add_peer(peer, envelope.name);
  probes_.plan(peer, probe_memory_, envelope.probes);
  peers_.emplace(peer,
                 Peer{.name = std::move(envelope.name), .regions = std::move(envelope.regions), .error = Status::ok()});
  cadence_.touch(std::chrono::steady_clock::now());
  return Status::ok();
}

PeerState NixlTransport::poll_peer(PeerId peer, Status* error) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    *error = Status(StatusCode::kState, "peer id " + std::to_string(peer) + " is unknown");
    return PeerState::kFailed;
  }
  // UCX connects by itself with the first write; without probes a ready peer means that its metadata was accepted.
  if (found->second.phase == PeerPhase::kReady && !probes_.run(peer, &speed_)) return PeerState::kConnecting;
  if (found->second.phase == PeerPhase::kReady) return PeerState::kReady;
  *error = found->second.error;
  return PeerState::kFailed;
}

void NixlTransport::offer_probes() {
  if (!options_.probes) return;
  if (!mappings_.empty()) offer_probe(MemoryKind::kHost, -1);
  if (!borrowed_.empty()) offer_probe(MemoryKind::kDevice, borrowed_.front().device);
}

void NixlTransport::offer_probe(MemoryKind kind, int device) {
  if (probe_memory_.find(kind) != nullptr) return;
  Region region;
  // Without room for it there is no probe; what is sent is judged all the same.
  if (!probe_memory_.allocate(kind, device, &region).is_ok()) return;
  if (kind == MemoryKind::kHost) speed_.set_copy_rate(probe_memory_.copy_rate());
  if (agent_.register_region(region).is_ok() && regions_.add(region)) return;
  probe_memory_.free(kind);
}

void NixlTransport::remove_peer(PeerId peer_id) {
  const auto found = peers_.find(peer_id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  speed_.remove_peer(peer_id);
  probes_.drop(peer_id);
  if (peer.phase == PeerPhase::kTornDown) {
    peers_.erase(found);
    return;
  }
  peer.phase = PeerPhase::kLeaving;
  peer.error = Status(StatusCode::kState, "peer " + peer.name + " was removed");
  tear_down_if_idle(peer_id);
}

bool NixlTransport::peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.regions.find(address, size) != nullptr;
}

std::vector<Region> NixlTransport::peer_regions(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? std::vector<Region>{} : found->second.regions.all();
}

BatchResult NixlTransport::post(BatchId batch, PeerId peer_id, std::span<const Run> runs) try {
  if (Status status = require_open(); !status.is_ok()) return failed(status.code(), status.message());
  const auto found = peers_.find(peer_id);
  if (found == peers_.end()) return failed(StatusCode::kState, "peer id " + std::to_string(peer_id) + " is unknown");
  Peer& peer = found->second;
  if (peer.phase != PeerPhase::kReady) return failed(peer.error.code(), peer.error.message());
  if (runs.empty()) return failed(StatusCode::kInvalidArgument, "a batch without runs");
  if (batches_.contains(batch))
    return failed(StatusCode::kInternal, "batch id " + std::to_string(batch) + " is in use");
  return start(batch, peer_id, &peer, runs);
} catch (const std::exception& error) {
  // A batch that was entered stays entered: nobody polls it any more, and close() finds it and keeps its memory.
  return {.state = BatchState::kFailed, .may_still_land = batches_.contains(batch), .error = from_exception(error)};
}

Status NixlTransport::place(const Peer& peer, std::span<const Run> runs,
                            std::vector<NixlAgent::PlacedRun>* placed) const {
  placed->reserve(runs.size());
  for (const Run& run : runs) {
    const Region* source = regions_.find(run.source, run.bytes);
    const Region* destination = peer.regions.find(run.destination, run.bytes);
    if (run.bytes == 0 || source == nullptr || destination == nullptr) {
      return {StatusCode::kInvalidArgument, "a run of " + std::to_string(run.bytes) + " bytes leaves the memory that " +
                                                (source == nullptr ? "this agent" : "peer " + peer.name) +
                                                " registered"};
    }
    placed->push_back({.run = run, .source = source, .destination = destination});
  }
  return Status::ok();
}

BatchResult NixlTransport::start(BatchId batch, PeerId peer_id, Peer* peer, std::span<const Run> runs) {
  std::vector<NixlAgent::PlacedRun> placed;
  if (Status status = place(*peer, runs, &placed); !status.is_ok()) return failed(status.code(), status.message());
  XferReq request = nullptr;
  if (Status status = agent_.create_write(peer->name, placed, &request); !status.is_ok()) {
    if (status.code() == StatusCode::kTransport) {
      status = explain_failure(peer, nixl::kBackendError, "preparing a write");
      tear_down_if_idle(peer_id);
    }
    return failed(status.code(), status.message());
  }
  // Entered before it is posted: from here on nothing may lose sight of it.
  Batch entry{
      .peer = peer_id, .request = request, .kind = placed.front().source->kind, .bytes = 0, .runs = runs.size()};
  for (const Run& run : runs) entry.bytes += run.bytes;
  batches_.emplace(batch, entry);
  ++peer->in_flight;
  const TimePoint now = std::chrono::steady_clock::now();
  cadence_.touch(now);
  if (!nixl::PeerProbes::is_probe(batch)) speed_.began(peer_id, entry.kind, now);
  return settle(batch, agent_.post(request), "posting a write");
}

BatchResult NixlTransport::poll(BatchId batch) try {
  const auto found = batches_.find(batch);
  if (found == batches_.end()) return failed(StatusCode::kState, "batch " + std::to_string(batch) + " is unknown");
  return settle(batch, agent_.status(found->second.request), "a write");
} catch (const std::exception& error) {
  return {.state = BatchState::kFailed, .may_still_land = batches_.contains(batch), .error = from_exception(error)};
}

BatchResult NixlTransport::settle(BatchId batch, int code, const char* action) {
  if (code == nixl::kInProgress)
    return {.state = BatchState::kInFlight, .may_still_land = false, .error = Status::ok()};
  const Batch entry = batches_.at(batch);
  // Probes are judged by themselves.
  if (!nixl::PeerProbes::is_probe(batch)) {
    speed_.ended(entry.peer, entry.kind, code == nixl::kSuccess ? entry.bytes : 0, entry.runs,
                 std::chrono::steady_clock::now());
  }
  if (code == nixl::kSuccess) {
    agent_.destroy_request(entry.request);
    end_batch(batch, entry.peer);
    return {.state = BatchState::kDone, .may_still_land = false, .error = Status::ok()};
  }
  // What failed may be running still: NIXL stops at the first bad descriptor and forgets the others.
  Status error = explain_failure(&peers_.at(entry.peer), code, action);
  quarantine_.hold(batch, entry.peer, entry.request);
  end_batch(batch, entry.peer);
  return {.state = BatchState::kFailed, .may_still_land = true, .error = std::move(error)};
}

Status NixlTransport::explain_failure(Peer* peer, int code, const char* action) {
  const std::string suffix = " (NIXL status " + std::to_string(code) + ")";
  if (peer->phase != PeerPhase::kLost && agent_.is_reachable(peer->name)) {
    return {StatusCode::kTransport, std::string(action) + " to peer " + peer->name + " failed" + suffix};
  }
  // Its C API gives every failure one number, so that a disconnect is known by what the connection does next.
  Status lost{StatusCode::kPeerLost, "peer " + peer->name + " is gone: " + action + " failed" + suffix};
  if (peer->phase == PeerPhase::kReady) {
    peer->phase = PeerPhase::kLost;
    peer->error = lost;
    lost_names_.push_back(peer->name);
    if (lost_names_.size() > kMaxLostNames) lost_names_.pop_front();
  }
  return lost;
}

void NixlTransport::end_batch(BatchId batch, PeerId peer_id) {
  batches_.erase(batch);
  --peers_.at(peer_id).in_flight;
  tear_down_if_idle(peer_id);
}

void NixlTransport::tear_down_if_idle(PeerId peer_id) {
  const auto found = peers_.find(peer_id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const bool is_ending = peer.phase == PeerPhase::kLost || peer.phase == PeerPhase::kLeaving;
  if (!is_ending || peer.in_flight > 0) return;
  // Requests first: each pins the endpoint, and only an endpoint that nobody holds is closed by the invalidation.
  quarantine_.begin_grace(peer_id, std::chrono::steady_clock::now() + options_.peer_grace,
                          [this](XferReq request) { agent_.destroy_request(request); });
  agent_.invalidate_remote(peer.name);
  if (peer.phase == PeerPhase::kLeaving) {
    peers_.erase(found);
  } else {
    peer.phase = PeerPhase::kTornDown;
  }
}

void NixlTransport::take_drained(std::vector<BatchId>* out) {
  quarantine_.take_drained(std::chrono::steady_clock::now(), out);
  // Nobody else knows of probes.
  std::erase_if(*out, nixl::PeerProbes::is_probe);
}

void NixlTransport::progress() {
  if (phase_ != AgentPhase::kOpen) return;
  const TimePoint start = std::chrono::steady_clock::now();
  agent_.progress(has_reader_ ? &notifications_ : nullptr);
  if (!notifications_.empty()) cadence_.touch(start);
  cadence_.observe(start, std::chrono::steady_clock::now());
  probes_.poll_dropped();
}

Status NixlTransport::send_message(PeerId peer, std::span<const std::byte> bytes) {
  const auto found = peers_.find(peer);
  if (phase_ != AgentPhase::kOpen || found == peers_.end() || found->second.phase != PeerPhase::kReady) {
    return {StatusCode::kPeerLost, "peer id " + std::to_string(peer) + " takes no messages"};
  }
  cadence_.touch(std::chrono::steady_clock::now());
  if (agent_.send_notification(found->second.name, bytes) == nixl::kSuccess) return Status::ok();
  Status error = explain_failure(&found->second, nixl::kBackendError, "sending a message");
  tear_down_if_idle(peer);
  return error;
}

void NixlTransport::take_messages(std::vector<Message>* out) {
  has_reader_ = true;
  for (NixlAgent::Notification& notification : notifications_) {
    for (const auto& [id, peer] : peers_) {
      // The name is what the sender claims; peers that were added are the only ones that are listened to.
      if (peer.phase != PeerPhase::kReady || peer.name != notification.sender) continue;
      out->push_back({id, std::move(notification.bytes)});
      break;
    }
  }
  notifications_.clear();
}

std::optional<TimePoint> NixlTransport::next_wakeup(TimePoint now) const {
  if (phase_ != AgentPhase::kOpen) return std::nullopt;
  if (!batches_.empty()) return now;
  std::optional<TimePoint> next = quarantine_.next_drain();
  if (is_published_ || !peers_.empty()) {
    const TimePoint drive = cadence_.next(now);
    if (!next.has_value() || drive < *next) next = drive;
  }
  return next;
}

bool NixlTransport::close() {
  if (phase_ != AgentPhase::kOpen) return phase_ != AgentPhase::kAbandoned;
  std::vector<BatchId> open_batches;
  for (const auto& [id, batch] : batches_) open_batches.push_back(id);
  for (const BatchId id : open_batches) (void)NixlTransport::poll(id);
  std::vector<PeerId> open_peers;
  for (const auto& [id, peer] : peers_) open_peers.push_back(id);
  for (const PeerId id : open_peers) NixlTransport::remove_peer(id);
  std::vector<BatchId> drained;
  take_drained(&drained);
  if (!batches_.empty() || !quarantine_.empty()) {
    phase_ = AgentPhase::kAbandoned;
    probe_memory_.abandon();
    return false;
  }
  release_memory();
  phase_ = AgentPhase::kClosed;
  return true;
}

void NixlTransport::release_memory() {
  for (const Mapping& mapping : mappings_) (void)agent_.deregister_region(mapping.region);
  for (const Region& region : borrowed_) (void)agent_.deregister_region(region);
  for (const Region& region : probe_memory_.all()) (void)agent_.deregister_region(region);
  agent_.destroy();
  for (const Mapping& mapping : mappings_) nixl::unmap(mapping.region.base, mapping.mapped_size);
  mappings_.clear();
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kDevice}) probe_memory_.free(kind);
}

}  // namespace

std::unique_ptr<Transport> make_nixl_transport(const NixlOptions& options, Status* error) {
  NixlProbe probe;
  const nixl::Library* library = nixl::load(options, &probe);
  if (library == nullptr) {
    *error = Status(StatusCode::kCapability, probe.reason);
    return nullptr;
  }
  return make_nixl_transport(*library, options, error);
}

std::unique_ptr<Transport> make_nixl_transport(const nixl::Library& library, const NixlOptions& options,
                                               Status* error) {
  // An envelope with this name must be possible later; better to hear of it now.
  std::vector<std::byte> unused;
  const nixl::Envelope sample{.name = options.agent_name, .regions = {}, .blob = {std::byte{0}}};
  if (!nixl::encode_envelope(sample, &unused).is_ok()) {
    *error = Status(StatusCode::kInvalidArgument, "the agent name must be 1 to 255 bytes without control characters");
    return nullptr;
  }
  *error = Status::ok();
  return std::make_unique<NixlTransport>(library, options);
}

}  // namespace kvt
