#include "transport/p2p_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/copy_choice.h"
#include "core/region_set.h"
#include "device/cuda_event.h"
#include "device/device_pool.h"
#include "transport/copy_advice.h"
#include "transport/engine_copies.h"
#include "transport/host_listener.h"
#include "transport/p2p_batches.h"
#include "transport/p2p_peer.h"

namespace kvt {
namespace {

constexpr auto kConnectLimit = std::chrono::seconds(2);
// How often batches in flight are asked for: a page of 32 KiB takes about this long.
constexpr auto kPollInterval = std::chrono::microseconds(5);
// A slice is one batch; this many wait on the device for each peer before its flows wait here.
constexpr BatchLimits kLimits{.max_runs = 1024, .max_bytes = std::size_t{256} << 20, .max_in_flight = 64};
// So many slices without an event are queued before a later one can be taken back: a few hundred microseconds of link.
constexpr std::size_t kUngatedDepth = 4;
// How often what was taken back is looked at: nobody waits for it.
constexpr auto kRetireInterval = std::chrono::milliseconds(1);

std::string how_it_writes(GpuLink link) {
  const std::string by = "kernels of this GPU write into the peer's pages, mapped here";
  switch (link) {
    case GpuLink::kNvlink:
      return by + "; over NVLink";
    case GpuLink::kPcie:
      return by + "; over PCIe, whose rate is assumed (25 GB/s) and not measured";
    case GpuLink::kSameGpu:
      return by + "; they are on the same GPU";
    case GpuLink::kUnknown:
      break;
  }
  return by + "; the driver does not say over which link, and times are those over NVLink";
}

// Role: Transport over device memory that processes of one machine map from each other.
// Ordering: slices whose event was reached, and those without one, go by two streams in turn; slices that still wait
//   for their event go in order on another, so that none of the first waits for a forward step. Long runs go by the
//   copy engines, in order, once their event was reached.
// Ownership: pools, mappings and buffers stay until nothing queued uses them; close() leaves them for ever otherwise.
class P2pTransport final : public Transport {
 public:
  explicit P2pTransport(const P2pOptions& options) : options_(options) {}

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override;
  Status register_region(const Region& region) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  PeerState poll_peer(PeerId peer, Status* error) override;
  void remove_peer(PeerId peer) override;
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override;
  std::vector<Region> peer_regions(PeerId peer) const override;
  BatchLimits limits() const override { return kLimits; }
  SliceRoute route(PeerId, Ticket, std::span<const PlanGroup> groups) const override {
    // What the copy engines have queued cannot be taken back: behind a forward they are given nothing.
    return {true, kLimits, static_cast<std::uint8_t>(DataPath::kP2p), !goes_by_engines(groups, nullptr)};
  }
  void name_peer(PeerId peer, const std::string& name) override { copy_advice_.name_peer(peer, name); }
  PeerPaths peer_paths(PeerId peer) const override {
    PeerPaths paths;
    const auto entry = peers_.find(peer);
    if (entry != peers_.end()) paths.link = entry->second.link();
    paths.p2p.reason = how_it_writes(paths.link);
    paths.has_bulk_kernel = kernels_->has_bulk();
    paths.copy_blocks = options_.max_blocks;
    return paths;
  }
  void take_advice(std::vector<std::string>* out) override {
    copy_advice_.take(&advice_);
    out->insert(out->end(), std::make_move_iterator(advice_.begin()), std::make_move_iterator(advice_.end()));
    advice_.clear();
  }
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override;
  bool takes_slices() const override { return true; }
  BatchResult post_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                         const CudaEvent* after) override;
  BatchResult poll(BatchId batch) override;
  void cancel(BatchId batch) override {
    engines_->cancel(batch);
    batches_->cancel(batch);
  }
  void take_drained(std::vector<BatchId>*) override {}
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  int wait_fd() const override { return epoll_.get(); }
  bool close() override;

 private:
  // What post_slice puts together before anything is queued.
  struct Launch {
    std::vector<CopyPart> parts;
    KernelChoice kernel;
    unsigned blocks = 0;
    std::size_t upload_bytes = 0;
  };

  static BatchResult failed(Status error) { return {BatchState::kFailed, false, std::move(error)}; }
  Status add_pool(std::unique_ptr<DevicePool> pool);
  BatchResult copy_runs(BatchId batch, PeerId peer, const P2pPeer& to, std::span<const Run> runs);
  Status prepare(P2pPeer* to, std::span<const PlanGroup> groups, DeviceBuffer* slots, Launch* out);
  // Of a slice that a change of its page tables would make faster.
  void advise(PeerId peer, BulkObstacle obstacle, std::span<const PlanGroup> groups);
  // What each launch is called with, into launches_.
  Status make_launches(const Launch& launch, const P2pBatches::Queued& batch);
  // `count`: of them that were queued.
  Status launch(const Launch& launch, const P2pBatches::Queued& batch, std::size_t* count) const;

  P2pOptions options_;
  std::shared_ptr<const CudaContext> context_;
  // Members end in reverse order: sockets before the memory they hand over, epoll last of all but the context.
  UniqueFd epoll_;
  std::vector<std::unique_ptr<DevicePool>> pools_;
  std::vector<int> descriptors_;  // of those pools that are shared by one
  RegionSet regions_;
  std::optional<HostListener> listener_;
  std::unique_ptr<PageKernels> kernels_;
  std::unique_ptr<P2pBatches> batches_;
  std::unique_ptr<EngineCopies> engines_;
  CudaStream idle_stream_;  // for uploads that are waited for
  // Slots travel beside the slice before theirs; on the copies' own stream they would hold it up between two kernels.
  CudaStream upload_stream_;
  CudaEvent uploaded_;
  std::unordered_map<PeerId, P2pPeer> peers_;
  std::vector<std::unique_ptr<P2pPeer>> given_up_;
  std::vector<std::string> advice_;
  CopyAdvice copy_advice_;
  std::vector<CopyArguments> launches_;  // kept for its capacity
};

Status P2pTransport::open() {
  Status status = CudaContext::retain(options_.device, &context_);
  if (!status.is_ok()) return status;
  status = PageKernels::load(context_, &kernels_);
  if (!status.is_ok()) return status;
  for (CudaStream* stream : {&idle_stream_, &upload_stream_}) {
    status = CudaStream::create(context_, StreamPriority::kLow, stream);
    if (!status.is_ok()) return status;
  }
  status = CudaEvent::create(context_, EventTiming::kOff, &uploaded_);
  if (!status.is_ok()) return status;
  batches_ = std::make_unique<P2pBatches>();
  status = batches_->open(context_);
  if (!status.is_ok()) return status;
  engines_ = std::make_unique<EngineCopies>();
  status = engines_->open(context_);
  if (!status.is_ok()) return status;
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  listener_.emplace(epoll_.get(), &descriptors_);
  return listener_->open();
}

Status P2pTransport::add_pool(std::unique_ptr<DevicePool> pool) {
  if (pools_.size() == kMaxP2pRegions) {
    return Status(StatusCode::kResource, "a p2p agent has at most " + std::to_string(kMaxP2pRegions) + " regions");
  }
  if (!regions_.add({pool->base(), pool->size()})) {
    return Status(StatusCode::kInvalidArgument, "the memory overlaps a region that the agent has already");
  }
  if (!pool->notice().empty()) {
    // Of whatever size: every pool falls back for the same reason, which is told once.
    advice_.push_back("pools on GPU " + std::to_string(options_.device) + ": " + pool->notice());
  }
  if (pool->handle().sharing == PoolSharing::kDescriptor) descriptors_.push_back(pool->handle().descriptor);
  pools_.push_back(std::move(pool));
  return Status::ok();
}

Status P2pTransport::allocate_region(std::size_t size, Region* out) {
  std::unique_ptr<DevicePool> pool;
  Status status = DevicePool::allocate(context_, size, &pool, options_.making);
  if (!status.is_ok()) return status;
  const Region region{pool->base(), size, MemoryKind::kDevice, options_.device};
  status = add_pool(std::move(pool));
  if (status.is_ok()) *out = region;
  return status;
}

Status P2pTransport::register_region(const Region& region) {
  if (region.kind != MemoryKind::kDevice || region.device != options_.device) {
    return Status(StatusCode::kInvalidArgument,
                  "a p2p agent takes memory of its own GPU " + std::to_string(options_.device) + " only");
  }
  std::unique_ptr<DevicePool> pool;
  Status status = DevicePool::adopt(context_, region.base, region.size, &pool);
  if (!status.is_ok()) return status;
  // Memory that cannot be shared can still be written from; peers that would write into it are told why they cannot.
  return add_pool(std::move(pool));
}

Status P2pTransport::metadata(std::vector<std::byte>* out) {
  P2pMetadata metadata;
  Status status = read_boot_id(&metadata.boot_id);
  if (!status.is_ok()) return status;
  metadata.token = listener_->token();
  metadata.socket_name = listener_->socket_name();
  for (const auto& pool : pools_) metadata.regions.push_back({pool->base(), pool->handle()});
  *out = encode_p2p_metadata(metadata);
  return Status::ok();
}

Status P2pTransport::begin_add_peer(PeerId peer, std::span<const std::byte> metadata) {
  P2pMetadata decoded;
  Status status = decode_p2p_metadata(metadata, &decoded);
  if (!status.is_ok()) return status;
  std::array<std::byte, 16> boot_id{};
  status = read_boot_id(&boot_id);
  if (!status.is_ok()) return status;
  if (boot_id != decoded.boot_id) {
    return Status(StatusCode::kCapability,
                  "the peer runs on another machine, and the p2p agent works on one; use the nixl agent on both sides");
  }
  for (const P2pRegion& region : decoded.regions) {
    status = check_peer_access(*context_, region.handle.device);
    if (!status.is_ok()) return status;
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + kConnectLimit;
  const auto [entry, is_new] =
      peers_.try_emplace(peer, decoded, epoll_.get(), HostListener::kFirstForeignEvent | peer, deadline);
  if (!is_new) return Status(StatusCode::kInternal, "peer id " + std::to_string(peer) + " is in use");
  return Status::ok();
}

PeerState P2pTransport::poll_peer(PeerId peer, Status* error) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) {
    *error = Status(StatusCode::kState, "unknown peer " + std::to_string(peer));
    return PeerState::kFailed;
  }
  entry->second.advance(context_, std::chrono::steady_clock::now());
  if (entry->second.state() == PeerState::kFailed) *error = entry->second.error();
  return entry->second.state();
}

void P2pTransport::remove_peer(PeerId peer) {
  copy_advice_.remove_peer(peer);
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  if (batches_->has_lost() || engines_->has_lost()) {
    entry->second.give_up();
    given_up_.push_back(std::make_unique<P2pPeer>(std::move(entry->second)));
    peers_.erase(entry);
    return;
  }
  entry->second.give_back_tables(&batches_->buffers());
  peers_.erase(entry);
}

bool P2pTransport::peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const {
  const auto entry = peers_.find(peer);
  return entry != peers_.end() && entry->second.regions().contains(address, size);
}

std::vector<Region> P2pTransport::peer_regions(PeerId peer) const {
  std::vector<Region> out;
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return out;
  for (const MemoryRange& range : entry->second.regions().ranges()) {
    out.push_back({range.base, range.size, MemoryKind::kDevice, -1});
  }
  return out;
}

BatchResult P2pTransport::copy_runs(BatchId batch, PeerId peer, const P2pPeer& to, std::span<const Run> runs) {
  // Everything is checked before anything is queued, so that a refused batch has moved nothing.
  std::vector<EngineCopies::Copy> copies;
  for (const Run& run : runs) {
    copies.push_back({to.translate(run.destination, run.bytes), run.source, run.bytes});
    if (copies.back().destination == 0 || !regions_.contains(run.source, run.bytes)) {
      return failed(Status(StatusCode::kInvalidArgument, "a run leaves the memory that its side registered"));
    }
  }
  return engines_->add(batch, peer, std::move(copies));
}

Status P2pTransport::prepare(P2pPeer* to, std::span<const PlanGroup> groups, DeviceBuffer* slots, Launch* out) {
  // A state for each launch, then the slots.
  std::size_t at = (groups.size() + kMaxCopyGroups - 1) / kMaxCopyGroups * sizeof(LaunchState);
  std::size_t bytes_in_all = at;
  for (const PlanGroup& group : groups) bytes_in_all += group.slot_pairs.size() * sizeof(std::int32_t);
  Status status = batches_->buffers().take(bytes_in_all, slots);
  if (!status.is_ok()) return status;
  std::memset(slots->host().data(), 0, at);
  PieceTraits traits;
  for (const PlanGroup& group : groups) {
    const P2pPeer::Table* table = nullptr;
    status = to->find_table(group.table, regions_, idle_stream_, &batches_->buffers(), &table);
    if (!status.is_ok()) return status;
    const std::size_t bytes = group.slot_pairs.size() * sizeof(std::int32_t);
    if (bytes == 0) continue;
    std::memcpy(slots->host().data() + at, group.slot_pairs.data(), bytes);
    out->parts.push_back({.table = &table->copy,
                          .fragments_at = table->buffer.device(),
                          .source_slots_at = slots->device() + at,
                          .destination_slots_at = slots->device() + at + sizeof(std::int32_t),
                          .pair_count = static_cast<std::uint32_t>(group.slot_pairs.size() / 2)});
    // Of the mapped addresses, which agree with the peer's own modulo 16: a mapping begins where an allocation does.
    traits.add(table->copy.traits);
    at += bytes;
  }
  out->kernel = choose_kernel(traits, kernels_->has_bulk());
  out->upload_bytes = at;
  return Status::ok();
}

void P2pTransport::advise(PeerId peer, BulkObstacle obstacle, std::span<const PlanGroup> groups) {
  if (obstacle != BulkObstacle::kUnaligned && obstacle != BulkObstacle::kSmallPieces) return;
  const bool is_unaligned = obstacle == BulkObstacle::kUnaligned;
  copy_advice_.tell(peer, is_unaligned ? CopyAdvice::Cause::kUnaligned : CopyAdvice::Cause::kSmallPieces,
                    {.path = DataPath::kP2p, .has_bulk_kernel = kernels_->has_bulk(), .blocks = options_.max_blocks},
                    groups);
}

Status P2pTransport::make_launches(const Launch& launch, const P2pBatches::Queued& batch) {
  launches_.clear();
  for (std::size_t from = 0; from < launch.parts.size(); from += kMaxCopyGroups) {
    const std::size_t count = std::min<std::size_t>(kMaxCopyGroups, launch.parts.size() - from);
    CopyArguments arguments;
    Status status = make_copy_arguments(std::span(launch.parts).subspan(from, count), &arguments);
    if (!status.is_ok()) return status;
    arguments.abort = reinterpret_cast<std::uintptr_t>(batch.word);
    arguments.state = batch.slots.device() + from / kMaxCopyGroups * sizeof(LaunchState);
    arguments.is_gated = batch.is_gated ? 1 : 0;
    launches_.push_back(arguments);
  }
  return Status::ok();
}

Status P2pTransport::launch(const Launch& launch, const P2pBatches::Queued& batch, std::size_t* count) const {
  for (const CopyArguments& arguments : launches_) {
    Status status =
        kernels_->copy(CopyKind::kPaged, launch.kernel.method, arguments, launch.blocks, batch.lane->stream);
    if (!status.is_ok()) return status;
    ++*count;
  }
  return Status::ok();
}

BatchResult P2pTransport::post(BatchId batch, PeerId peer, std::span<const Run> runs) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end() || entry->second.state() != PeerState::kReady) {
    return failed(Status(StatusCode::kState, "peer " + std::to_string(peer) + " is not ready"));
  }
  return copy_runs(batch, peer, entry->second, runs);
}

BatchResult P2pTransport::post_slice(BatchId batch, PeerId peer, Ticket, std::span<const PlanGroup> groups,
                                     const CudaEvent* after) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end() || entry->second.state() == PeerState::kConnecting) {
    return failed(Status(StatusCode::kState, "peer " + std::to_string(peer) + " is not ready"));
  }
  P2pPeer& to = entry->second;
  if (!to.check_alive()) return failed(to.error());
  // `route` said that these come without an event.
  if (std::vector<Run> runs; after == nullptr && goes_by_engines(groups, &runs)) {
    return copy_runs(batch, peer, to, runs);
  }
  // Once for all the calls below: each makes it current again, which then costs next to nothing.
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return failed(current.status());

  P2pBatches::Queued queued{
      .peer = peer, .slots = {}, .lane = after == nullptr ? &batches_->ready() : &batches_->waiting(), .done = {}};
  const CudaStream& stream = queued.lane->stream;
  Launch prepared;
  Status status = batches_->begin(&queued);
  if (status.is_ok()) status = prepare(&to, groups, &queued.slots, &prepared);
  if (status.is_ok()) advise(peer, prepared.kernel.obstacle, groups);
  // The gate costs a launch a look at host memory; what is about to run is soon over without it.
  queued.is_gated = after != nullptr || batches_->ready_depth() >= kUngatedDepth;
  prepared.blocks = options_.max_blocks;
  if (status.is_ok()) status = make_launches(prepared, queued);
  if (status.is_ok() && after == nullptr)
    status = batches_->share_blocks(options_.max_blocks, &queued, &prepared.blocks);
  // The slots travel before the event is waited for, so that they cost nothing once it is reached; beside what the
  // stream still copies, but not where there is nothing of that: two calls fewer.
  const bool is_beside = !queued.lane->order.empty();
  const CudaStream& upload_stream = is_beside ? upload_stream_ : stream;
  if (status.is_ok()) status = queued.slots.upload(prepared.upload_bytes, upload_stream);
  if (!status.is_ok()) {
    batches_->drop(std::move(queued));
    return failed(std::move(status));
  }
  std::size_t launched = 0;
  if (is_beside) status = uploaded_.record(upload_stream_);
  if (status.is_ok() && is_beside) status = uploaded_.wait_on(stream);
  if (status.is_ok() && after != nullptr) status = after->wait_on(stream);
  if (status.is_ok()) status = launch(prepared, queued, &launched);
  if (!status.is_ok() && launched == 0) {
    batches_->drop_after(std::move(queued), upload_stream);
    return failed(std::move(status));
  }
  return batches_->queued(batch, std::move(queued), std::move(status));
}

BatchResult P2pTransport::poll(BatchId batch) {
  PeerId id = 0;
  BatchResult result;
  if (engines_->has(batch)) {
    EngineCopies::Ending ending = engines_->poll(batch);
    id = ending.peer;
    result = std::move(ending.result);
  } else {
    P2pBatches::Ending ending = batches_->poll(batch);
    id = ending.peer;
    result = std::move(ending.result);
  }
  if (result.state != BatchState::kDone) return result;
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) return failed(Status(StatusCode::kPeerLost, "the peer was removed"));
  // Asked after the copy: bytes that were written while the peer died arrived nowhere.
  if (!peer->second.check_alive()) return failed(peer->second.error());
  return {BatchState::kDone, false, {}};
}

void P2pTransport::progress() {
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
    if (peer != peers_.end()) peer->second.advance(context_, now);
  }
  listener_->drop_expired(now);
  batches_->retire();
}

std::optional<TimePoint> P2pTransport::next_wakeup(TimePoint now) const {
  std::optional<TimePoint> earliest = listener_->next_deadline();
  const auto consider = [&earliest](std::optional<TimePoint> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  for (const auto& [id, peer] : peers_) consider(peer.next_wakeup(now));
  if (batches_->has_any() || engines_->has_any()) consider(now + kPollInterval);
  if (batches_->has_unretired()) consider(now + kRetireInterval);
  return earliest;
}

bool P2pTransport::close() {
  // Sockets first: peers learn that the agent is gone before its memory is.
  listener_.reset();
  if (engines_ == nullptr) return true;  // it never opened
  batches_->retire();
  const bool is_drained =
      !batches_->has_any() && !batches_->has_lost() && !engines_->has_any() && !engines_->has_lost();
  if (!is_drained || batches_->has_unretired()) {
    // What is queued uses words and slots, and the driver runs its kernels. Of what was taken back that is all; the
    // rest may still read our pools and write through the mappings: all of it is given up as it is.
    struct GivenUp {
      std::unique_ptr<P2pBatches> batches;
      std::unique_ptr<EngineCopies> engines;
      std::unique_ptr<PageKernels> kernels;
      std::vector<std::unique_ptr<DevicePool>> pools;
      std::unordered_map<PeerId, P2pPeer> peers;
      std::vector<std::unique_ptr<P2pPeer>> more_peers;
    };
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): nobody owns it any more, on purpose
    auto* const given_up = new GivenUp{std::move(batches_), std::move(engines_), std::move(kernels_), {}, {}, {}};
    if (!is_drained) {
      for (auto& [id, peer] : peers_) peer.give_up();
      given_up->pools = std::move(pools_);
      given_up->peers = std::move(peers_);
      given_up->more_peers = std::move(given_up_);
    }
    pools_.clear();
    peers_.clear();
    return is_drained;
  }
  for (auto& [id, peer] : peers_) peer.give_back_tables(&batches_->buffers());
  peers_.clear();
  pools_.clear();
  return true;
}

}  // namespace

std::unique_ptr<Transport> make_p2p_transport(const P2pOptions& options, Status* error) {
  *error = Status::ok();
  if (options.device < 0 || options.max_blocks == 0 || options.max_blocks > kMostCopyBlocks) {
    *error = Status(StatusCode::kInvalidArgument, "a p2p agent needs a GPU's number, and 1 to " +
                                                      std::to_string(kMostCopyBlocks) + " blocks for a copy");
    return nullptr;
  }
  return std::make_unique<P2pTransport>(options);
}

}  // namespace kvt
