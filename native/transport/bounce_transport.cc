#include "transport/bounce_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "core/bounce_reader.h"
#include "core/bounce_writer.h"
#include "core/region_set.h"
#include "core/unique_fd.h"
#include "device/device_pool.h"
#include "transport/bounce_device_mover.h"
#include "transport/bounce_host_mover.h"
#include "transport/bounce_socket_link.h"

namespace kvt {
namespace {

// Batches of our own on the transport below; the engine counts its own from 1.
constexpr BatchId kOwnBatch = BatchId{1} << 63;
// How often peers are looked at for whether the transport below lost them.
constexpr std::chrono::milliseconds kPeerInterval{50};

std::size_t pool_bytes(const SlotPool& pool) {
  return pool.slot_stride * static_cast<std::size_t>(pool.slot_count - 1) + pool.slot_bytes;
}

// Role: Transport that bounces what is worth it and hands everything else to the one below.
// Threading: the progress thread. The two state machines of core decide; this class carries out what they ask for.
// Ownership: owns the transport below, the arena (a region of it), link and mover.
// Ordering: one call of progress() moves at most a turn of the mover and one write that the caller's thread copies.
class BounceTransport final : public Transport {
 public:
  BounceTransport(std::unique_ptr<Transport> base, const BounceOptions& options, CreditScheduler credits)
      : base_(std::move(base)),
        options_(options),
        credits_(std::move(credits)),
        writer_(&credits_, timeouts(options), options.max_inflight_chunks),
        reader_(&credits_, timeouts(options)) {}

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override;
  Status register_region(const Region& region) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  PeerState poll_peer(PeerId peer, Status* error) override;
  void remove_peer(PeerId peer) override;
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override {
    return base_->peer_owns(peer, address, size);
  }
  std::vector<Region> peer_regions(PeerId peer) const override { return base_->peer_regions(peer); }
  BatchLimits limits() const override { return base_->limits(); }
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override {
    return base_->post(batch, peer, runs);
  }
  bool takes_slices() const override { return base_->takes_slices(); }
  BatchResult post_slice(BatchId batch, PeerId peer, std::span<const PlanGroup> groups,
                         const CudaEvent* after) override {
    return base_->post_slice(batch, peer, groups, after);
  }
  bool takes_slice(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const override;
  BatchResult post_ticketed_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                                  const CudaEvent* after) override;
  void cancel(BatchId batch) override;
  Status expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) override;
  bool end_inbound(PeerId peer, Ticket ticket) override;
  BatchResult poll(BatchId batch) override;
  void take_drained(std::vector<BatchId>* out) override;
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  int wait_fd() const override { return epoll_.get(); }
  bool reads_bounce_head() const override { return true; }
  bool close() override;

 private:
  // A chunk on its way into a peer's arena, in pieces that the transport below takes.
  struct Write {
    BounceChunk id;
    PeerId peer = 0;
    Run left;
    std::size_t in_flight = 0;
    bool may_still_land = false;
    std::size_t undrained = 0;
    Status error;
  };
  struct Job {
    std::variant<BounceChunk, BounceGrant> work;
    BounceSlice slice = 0;
  };

  static BounceTimeouts timeouts(const BounceOptions& options) { return {.request = options.request_timeout}; }
  static BatchResult failed(Status error) { return {BatchState::kFailed, false, std::move(error)}; }

  Status open_arena();
  bool is_bounced(BatchId batch) const { return slices_.contains(batch) || ended_.contains(batch); }
  bool is_worth_it(std::span<const PlanGroup> groups) const;
  bool owns_pools(std::span<const FragmentTable* const> tables, PackedSide side) const;
  void connect_bounce(PeerId peer);
  void lose_bounce(PeerId peer, bool is_proven);
  void check_peers(TimePoint now);

  void receive_frames(TimePoint now);
  void settle_jobs(TimePoint now);
  void poll_writes(TimePoint now);
  // False: nothing could be posted.
  bool post_write(TimePoint now);
  void settle_write(std::list<Write>::iterator write, TimePoint now);
  void collect_drained();
  void act(TimePoint now);

  void do_action(SendBounceFrame& action);
  void do_action(GatherBounceChunk& action);
  void do_action(DropBounceGather& action);
  void do_action(WriteBounceChunk& action);
  void do_action(BounceSliceEnded& action);
  void do_action(BounceSliceDrained& action) { drained_.push_back(action.slice); }
  void do_action(ScatterBounceChunk& action);
  void do_action(DropBounceScatter& action);
  void do_action(BounceInboundEnded& action) { ending_.erase({action.peer, action.ticket}); }
  BounceMover::JobId start_job(Job job, BounceMover::Job move);

  // Members end in reverse order: mover and link before the memory they use, epoll last of all.
  UniqueFd epoll_;
  std::unique_ptr<DevicePool> device_arena_;
  std::unique_ptr<Transport> base_;
  const BounceOptions options_;
  RegionSet regions_;
  Region arena_;
  CreditScheduler credits_;
  BounceWriter writer_;
  BounceReader reader_;
  std::unique_ptr<BounceMover> mover_;
  std::unique_ptr<BounceLink> link_;

  // Peers whose arena may be written to, and those that might once the transport below is ready.
  std::unordered_map<PeerId, BounceMetadata> offered_;
  std::unordered_map<PeerId, BounceMetadata> bounced_;
  // Peers that were bounced to at some time. When the link to one breaks, its slices fail instead of going another way:
  // its receiver counts on it that nobody but itself writes into the pages of a ticket.
  std::unordered_set<PeerId> agreed_;
  std::vector<PeerId> unreachable_;
  std::set<PeerId> leaving_;  // removed, but writes to them still run
  TimePoint peers_checked_at_{};

  std::unordered_map<BatchId, const CudaEvent*> slices_;  // in flight, by what their gathers wait for
  std::unordered_map<BatchId, BatchResult> ended_;
  std::vector<BatchId> drained_;
  std::set<std::pair<PeerId, Ticket>> ending_;

  std::unordered_map<BounceMover::JobId, Job> jobs_;
  std::unordered_map<BounceRequest, std::unordered_map<std::uint32_t, BounceMover::JobId>> gathers_;
  std::unordered_map<BounceGrant, BounceMover::JobId> scatters_;
  BounceMover::JobId last_job_ = 0;

  std::list<Write> writes_;
  std::unordered_map<BatchId, std::list<Write>::iterator> batches_;    // of ours, in flight
  std::unordered_map<BatchId, std::list<Write>::iterator> undrained_;  // of ours, failed and may still land
  std::unordered_map<PeerId, std::size_t> in_flight_;
  BatchId last_batch_ = kOwnBatch;
  bool has_posted_ = false;

  // Kept for their capacity.
  std::vector<BounceWriterAction> writer_actions_;
  std::vector<BounceReaderAction> reader_actions_;
  std::vector<BounceMover::Ended> ended_jobs_;
  std::vector<Message> frames_;
  std::vector<PeerId> lost_;
};

Status BounceTransport::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  Status status = base_->open();
  if (status.is_ok()) status = open_arena();
  if (!status.is_ok()) return status;
  if (options_.link == BounceLinkKind::kSocket) {
    link_ = std::make_unique<BounceSocketLink>();
  } else {
    link_ = std::make_unique<BounceMessageLink>(base_.get());
  }
  status = link_->open();
  for (const int descriptor : {base_->wait_fd(), link_->wait_fd()}) {
    if (descriptor < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
  }
  return status;
}

Status BounceTransport::open_arena() {
  const std::size_t bytes = credits_.arena().capacity();
  Status status;
  if (options_.arena_device >= 0) {
    auto mover = std::make_unique<BounceDeviceMover>(options_.arena_device, options_.gather_blocks);
    status = mover->open();
    if (status.is_ok()) status = DevicePool::allocate(mover->context(), bytes, &device_arena_);
    if (!status.is_ok()) return status;
    arena_ = {device_arena_->base(), bytes, MemoryKind::kDevice, options_.arena_device};
    status = base_->register_region(arena_);
    mover_ = std::move(mover);
    return status;
  }
  status = base_->allocate_region(bytes, &arena_);
  if (!status.is_ok()) return status;
  if (arena_.kind == MemoryKind::kDevice) {
    mover_ = std::make_unique<BounceDeviceMover>(arena_.device, options_.gather_blocks);
  } else {
    mover_ = std::make_unique<BounceHostMover>();
  }
  return mover_->open();
}

Status BounceTransport::allocate_region(std::size_t size, Region* out) {
  Status status = base_->allocate_region(size, out);
  if (status.is_ok()) (void)regions_.add({out->base, out->size});
  return status;
}

Status BounceTransport::register_region(const Region& region) {
  Status status = base_->register_region(region);
  if (status.is_ok()) (void)regions_.add({region.base, region.size});
  return status;
}

Status BounceTransport::metadata(std::vector<std::byte>* out) {
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

Status BounceTransport::begin_add_peer(PeerId peer, std::span<const std::byte> metadata) {
  std::optional<BounceMetadata> head;
  std::span<const std::byte> base;
  Status status = unwrap_bounce_metadata(metadata, &base, &head);
  if (status.is_ok()) status = base_->begin_add_peer(peer, base);
  if (!status.is_ok()) return status;
  const bool agrees = head && head->version == kBounceVersion && head->link == options_.link &&
                      head->max_chunk == options_.max_chunk_bytes;
  // Frames may come from the moment the peer was told of us, so the link is up before the transport below is.
  if (agrees && link_->add_peer(peer, head->link_address).is_ok()) offered_.emplace(peer, std::move(*head));
  return status;
}

PeerState BounceTransport::poll_peer(PeerId peer, Status* error) {
  const PeerState state = base_->poll_peer(peer, error);
  if (state == PeerState::kReady) connect_bounce(peer);
  return state;
}

void BounceTransport::connect_bounce(PeerId peer) {
  const auto offer = offered_.find(peer);
  if (offer == offered_.end()) return;
  const BounceMetadata head = std::move(offer->second);
  offered_.erase(offer);
  // It could name any address as its arena; only memory that it published can be written to at all.
  if (!base_->peer_owns(peer, head.arena_base, head.arena_bytes)) {
    link_->remove_peer(peer);
    return;
  }
  writer_.add_peer(peer, options_.max_chunk_bytes, head.arena_bytes);
  reader_.add_peer(peer);
  bounced_.emplace(peer, head);
  agreed_.insert(peer);
}

void BounceTransport::lose_bounce(PeerId peer, bool is_proven) {
  const TimePoint now = std::chrono::steady_clock::now();
  offered_.erase(peer);
  link_->remove_peer(peer);
  if (bounced_.erase(peer) == 0) return;
  writer_.remove_peer(peer, now);
  reader_.remove_peer(peer, is_proven, now);
}

void BounceTransport::remove_peer(PeerId peer) {
  // Its agent may run on, and nobody asked it what it still writes.
  lose_bounce(peer, false);
  agreed_.erase(peer);
  act(std::chrono::steady_clock::now());
  if (in_flight_.contains(peer)) {
    leaving_.insert(peer);
  } else {
    base_->remove_peer(peer);
  }
}

bool BounceTransport::is_worth_it(std::span<const PlanGroup> groups) const {
  std::uint64_t bytes = 0;
  for (const PlanGroup& group : groups) {
    bytes += std::uint64_t{group.table->bytes_per_pair()} * (group.slot_pairs.size() / 2);
  }
  // At least so many, and so many that they are small on average.
  const std::uint64_t average = std::max<std::uint64_t>(options_.max_average_descriptor_bytes, 1);
  const std::uint64_t enough =
      std::max<std::uint64_t>({options_.min_descriptor_count, (bytes + average - 1) / average, 1});
  return has_descriptors(groups, enough);
}

bool BounceTransport::takes_slice(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const {
  const bool is_ours = ticket != 0 && agreed_.contains(peer) && (options_.is_forced || is_worth_it(groups));
  return is_ours || base_->takes_slices();
}

bool BounceTransport::owns_pools(std::span<const FragmentTable* const> tables, PackedSide side) const {
  return std::all_of(tables.begin(), tables.end(), [&](const FragmentTable* table) {
    return std::all_of(table->fragments().begin(), table->fragments().end(), [&](const Fragment& fragment) {
      const SlotPool& pool = side == PackedSide::kSource ? fragment.source : fragment.destination;
      return regions_.contains(pool.base, pool_bytes(pool));
    });
  });
}

BatchResult BounceTransport::post_ticketed_slice(BatchId batch, PeerId peer, Ticket ticket,
                                                 std::span<const PlanGroup> groups, const CudaEvent* after) {
  // takes_slice also says yes where only the transport below takes slices.
  const bool is_ours =
      ticket != 0 && agreed_.contains(peer) && (!base_->takes_slices() || options_.is_forced || is_worth_it(groups));
  if (!is_ours) return base_->post_slice(batch, peer, groups, after);
  if (!bounced_.contains(peer)) {
    return failed(Status(StatusCode::kPeerLost, "the connection for bounced slices to this peer is gone"));
  }
  std::vector<const FragmentTable*> tables;
  for (const PlanGroup& group : groups) tables.push_back(group.table.get());
  if (!owns_pools(tables, PackedSide::kSource)) {
    return failed(Status(StatusCode::kInvalidArgument, "a pool leaves the memory that its side registered"));
  }
  const TimePoint now = std::chrono::steady_clock::now();
  slices_.emplace(batch, after);
  writer_.submit(batch, peer, ticket, split_slice(groups), now);
  act(now);
  return BounceTransport::poll(batch);
}

void BounceTransport::cancel(BatchId batch) {
  if (!slices_.contains(batch)) {
    base_->cancel(batch);
    return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  writer_.cancel(batch, now);
  act(now);
}

Status BounceTransport::expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
  // A writer that will not bounce needs no registration.
  if (!bounced_.contains(peer)) return Status::ok();
  std::vector<const FragmentTable*> tables;
  for (const InboundGroup& group : groups) tables.push_back(group.table.get());
  if (!owns_pools(tables, PackedSide::kDestination)) {
    return Status(StatusCode::kInvalidArgument, "a pool of an inbound group leaves the memory of this agent");
  }
  return reader_.expect(peer, ticket, std::move(groups));
}

bool BounceTransport::end_inbound(PeerId peer, Ticket ticket) {
  if (ending_.emplace(peer, ticket).second) {
    const TimePoint now = std::chrono::steady_clock::now();
    reader_.end(peer, ticket, now);
    act(now);
    // What the mover could stop at once has been stopped.
    settle_jobs(now);
    act(now);
  }
  return !ending_.contains({peer, ticket});
}

BatchResult BounceTransport::poll(BatchId batch) {
  const auto ended = ended_.find(batch);
  if (ended != ended_.end()) {
    BatchResult result = std::move(ended->second);
    ended_.erase(ended);
    return result;
  }
  if (slices_.contains(batch)) return {BatchState::kInFlight, false, {}};
  return base_->poll(batch);
}

void BounceTransport::take_drained(std::vector<BatchId>* out) {
  collect_drained();
  out->insert(out->end(), drained_.begin(), drained_.end());
  drained_.clear();
}

void BounceTransport::progress() {
  base_->progress();
  const TimePoint now = std::chrono::steady_clock::now();
  has_posted_ = false;
  check_peers(now);
  receive_frames(now);
  collect_drained();
  poll_writes(now);
  mover_->work(&ended_jobs_);
  settle_jobs(now);
  writer_.step(now);
  reader_.step(now);
  act(now);
  // A base that copies in post() does so once a call, so that neither frames nor other flows wait for more.
  has_posted_ = post_write(now);
  act(now);
}

void BounceTransport::check_peers(TimePoint now) {
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

void BounceTransport::receive_frames(TimePoint now) {
  frames_.clear();
  lost_.clear();
  link_->progress(&frames_, &lost_);
  for (const Message& message : frames_) {
    BounceFrame frame;
    if (!decode_bounce_frame(message.bytes, &frame).is_ok()) continue;
    switch (frame.type) {
      case BounceFrameType::kWant:
      case BounceFrameType::kData:
      case BounceFrameType::kCancel:
        reader_.on_frame(message.peer, frame, now);
        break;
      case BounceFrameType::kGrant:
      case BounceFrameType::kAck:
      case BounceFrameType::kNack:
        writer_.on_frame(message.peer, frame, now);
        break;
    }
  }
  for (const PeerId peer : lost_) lose_bounce(peer, options_.link_end_proves_end);
}

void BounceTransport::settle_jobs(TimePoint now) {
  mover_->work(&ended_jobs_);
  for (const BounceMover::Ended& ended : std::exchange(ended_jobs_, {})) {
    const auto entry = jobs_.find(ended.id);
    if (entry == jobs_.end()) continue;
    const Job job = entry->second;
    if (const auto* grant = std::get_if<BounceGrant>(&job.work)) {
      // On a lost device nothing says that it ended: it stays unanswered, and so does the end of its receive.
      if (ended.may_still_land) continue;
      scatters_.erase(*grant);
      reader_.scattered(*grant, ended.status.is_ok(), now);
    } else {
      const auto& chunk = std::get<BounceChunk>(job.work);
      if (ended.may_still_land) {
        writer_.fail(job.slice, ended.status, now);
        continue;
      }
      const auto request = gathers_.find(chunk.request);
      request->second.erase(chunk.chunk);
      if (request->second.empty()) gathers_.erase(request);
      writer_.gathered(chunk, ended.status, now);
    }
    jobs_.erase(entry);
  }
}

void BounceTransport::poll_writes(TimePoint now) {
  std::vector<BatchId> ids;
  for (const auto& [id, write] : batches_) ids.push_back(id);
  for (const BatchId id : ids) {
    BatchResult result = base_->poll(id);
    if (result.state == BatchState::kInFlight) continue;
    const auto write = batches_.at(id);
    batches_.erase(id);
    const auto count = in_flight_.find(write->peer);
    if (--count->second == 0) in_flight_.erase(count);
    --write->in_flight;
    if (result.state == BatchState::kFailed) {
      if (result.may_still_land) {
        undrained_.emplace(id, write);
        ++write->undrained;
        write->may_still_land = true;
      }
      if (write->error.is_ok()) write->error = std::move(result.error);
      write->left.bytes = 0;
    }
    settle_write(write, now);
  }
  std::erase_if(leaving_, [this](PeerId peer) {
    if (in_flight_.contains(peer)) return false;
    base_->remove_peer(peer);
    return true;
  });
}

bool BounceTransport::post_write(TimePoint now) {
  const BatchLimits limits = base_->limits();
  bool has_posted = false;
  for (std::size_t turns = writes_.size(); turns > 0; --turns) {
    const auto write = writes_.begin();
    writes_.splice(writes_.end(), writes_, write);
    if (write->left.bytes == 0) continue;
    if (!bounced_.contains(write->peer)) {
      // Its peer went before all of it was posted.
      write->left.bytes = 0;
      if (write->error.is_ok()) write->error = Status(StatusCode::kPeerLost, "the peer is gone");
      settle_write(write, now);
      continue;
    }
    while (write->left.bytes > 0) {
      const auto busy = in_flight_.find(write->peer);
      if (busy != in_flight_.end() && busy->second >= limits.max_in_flight) break;
      const kvt::Run run{write->left.source, write->left.destination, std::min(write->left.bytes, limits.max_bytes)};
      const BatchId id = ++last_batch_;
      BatchResult result = base_->post(id, write->peer, {&run, 1});
      write->left = {run.source + run.bytes, run.destination + run.bytes, write->left.bytes - run.bytes};
      has_posted = true;
      if (result.state == BatchState::kInFlight) {
        ++in_flight_[write->peer];
        ++write->in_flight;
        batches_.emplace(id, write);
        continue;
      }
      if (result.state == BatchState::kFailed) {
        if (result.may_still_land) {
          undrained_.emplace(id, write);
          ++write->undrained;
          write->may_still_land = true;
        }
        if (write->error.is_ok()) write->error = std::move(result.error);
        write->left.bytes = 0;
      }
      settle_write(write, now);
      return true;
    }
  }
  return has_posted;
}

void BounceTransport::settle_write(std::list<Write>::iterator write, TimePoint now) {
  if (write->left.bytes > 0 || write->in_flight > 0) return;
  const BounceChunk id = write->id;
  const Status error = write->error;
  const bool may_still_land = write->may_still_land;
  if (write->undrained == 0) writes_.erase(write);
  writer_.wrote(id, error, may_still_land, now);
  // It drained while other pieces of it were still running.
  if (may_still_land && write->undrained == 0) writer_.write_drained(id);
}

void BounceTransport::collect_drained() {
  std::vector<BatchId> ids;
  base_->take_drained(&ids);
  for (const BatchId id : ids) {
    const auto entry = undrained_.find(id);
    if (entry == undrained_.end()) {
      drained_.push_back(id);
      continue;
    }
    const auto write = entry->second;
    undrained_.erase(entry);
    if (--write->undrained > 0 || write->in_flight > 0 || write->left.bytes > 0) continue;
    const BounceChunk chunk = write->id;
    writes_.erase(write);
    writer_.write_drained(chunk);
  }
}

void BounceTransport::act(TimePoint now) {
  // What is done may ask for more at once.
  while (true) {
    writer_.step(now);
    writer_actions_.clear();
    reader_actions_.clear();
    writer_.take_actions(&writer_actions_);
    reader_.take_actions(&reader_actions_);
    if (writer_actions_.empty() && reader_actions_.empty()) return;
    for (BounceWriterAction& action : writer_actions_) std::visit([this](auto& one) { do_action(one); }, action);
    for (BounceReaderAction& action : reader_actions_) std::visit([this](auto& one) { do_action(one); }, action);
  }
}

void BounceTransport::do_action(SendBounceFrame& action) {
  // Not here: the state machines are in the middle of something.
  if (!link_->send(action.peer, action.frame)) unreachable_.push_back(action.peer);
}

BounceMover::JobId BounceTransport::start_job(Job job, BounceMover::Job move) {
  const BounceMover::JobId id = ++last_job_;
  jobs_.emplace(id, std::move(job));
  move.id = id;
  mover_->start(std::move(move));
  return id;
}

void BounceTransport::do_action(GatherBounceChunk& action) {
  const auto slice = slices_.find(action.slice);
  BounceMover::Job move{.groups = {action.plan, &action.plan->sources},
                        .side = PackedSide::kSource,
                        .begin = action.begin,
                        .end = action.end,
                        .linear = arena_.base + action.staging,
                        .after = slice == slices_.end() ? nullptr : slice->second};
  gathers_[action.id.request][action.id.chunk] = start_job({action.id, action.slice}, std::move(move));
}

void BounceTransport::do_action(DropBounceGather& action) {
  const auto request = gathers_.find(action.id.request);
  if (request == gathers_.end()) return;
  const auto job = request->second.find(action.id.chunk);
  if (job != request->second.end()) mover_->drop(job->second);
}

void BounceTransport::do_action(WriteBounceChunk& action) {
  const auto peer = bounced_.find(action.peer);
  // A peer that just went: post_write settles it.
  const std::uint64_t remote = peer == bounced_.end() ? 0 : peer->second.arena_base;
  writes_.push_back({.id = action.id,
                     .peer = action.peer,
                     .left = {arena_.base + action.staging, remote + action.remote_offset, action.bytes},
                     .error = {}});
}

void BounceTransport::do_action(BounceSliceEnded& action) {
  slices_.erase(action.slice);
  BatchResult result;
  switch (action.outcome) {
    case BounceOutcome::kTransferred:
      result = {BatchState::kDone, false, {}};
      break;
    case BounceOutcome::kFailed:
    case BounceOutcome::kCancelled:
      result = {BatchState::kFailed, !action.drained, std::move(action.error)};
      break;
  }
  ended_.emplace(action.slice, std::move(result));
}

void BounceTransport::do_action(ScatterBounceChunk& action) {
  BounceMover::Job move{.groups = action.destinations,
                        .side = PackedSide::kDestination,
                        .begin = action.begin,
                        .end = action.end,
                        .linear = arena_.base + action.offset};
  scatters_[action.grant] = start_job({action.grant}, std::move(move));
}

void BounceTransport::do_action(DropBounceScatter& action) {
  const auto job = scatters_.find(action.grant);
  if (job != scatters_.end()) mover_->drop(job->second);
}

std::optional<TimePoint> BounceTransport::next_wakeup(TimePoint now) const {
  std::optional<TimePoint> earliest = base_->next_wakeup(now);
  const auto consider = [&earliest](std::optional<TimePoint> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  consider(mover_->next_wakeup(now));
  consider(link_->next_wakeup(now));
  // Frames that nothing announces are looked for while some are expected.
  const bool expects_frames = !writer_.is_idle() || reader_.is_serving();
  if (link_->wait_fd() < 0 && expects_frames) return now;
  consider(writer_.next_deadline());
  consider(reader_.next_deadline());
  if (!unreachable_.empty() || !ended_.empty() || !drained_.empty()) return now;
  // What waits for room towards its peer is called when a batch ends, which the transport below knows.
  const bool can_post = std::any_of(writes_.begin(), writes_.end(), [this](const Write& write) {
    return write.left.bytes > 0 && !in_flight_.contains(write.peer);
  });
  if (can_post || has_posted_) return now;
  return earliest;
}

bool BounceTransport::close() {
  std::vector<PeerId> peers;
  for (const auto& [peer, head] : bounced_) peers.push_back(peer);
  for (const PeerId peer : peers) lose_bounce(peer, false);
  act(std::chrono::steady_clock::now());
  mover_->work(&ended_jobs_);
  poll_writes(std::chrono::steady_clock::now());
  link_.reset();
  if (!mover_->is_idle()) {
    // A kernel may still read or write the arena and the pages: all of it is given up as it is.
    (void)mover_.release();
    (void)device_arena_.release();
    (void)base_.release();
    return false;
  }
  const bool is_drained = base_->close();
  if (!is_drained) (void)device_arena_.release();
  return is_drained;
}

}  // namespace

std::unique_ptr<Transport> make_bounce_transport(std::unique_ptr<Transport> base, const BounceOptions& options,
                                                 Status* error) {
  CreditScheduler credits;
  *error = CreditScheduler::create({.arena_bytes = options.arena_bytes,
                                    .max_chunk = options.max_chunk_bytes,
                                    .max_held_per_flow = options.max_inflight_chunks},
                                   &credits);
  if (error->is_ok() && options.request_timeout.count() < 1) {
    *error = Status(StatusCode::kInvalidArgument, "bounce.requestTimeoutMs must be at least 1");
  }
  if (error->is_ok() && options.gather_blocks < 1) {
    *error = Status(StatusCode::kInvalidArgument, "bounce.gatherBlocks must be at least 1");
  }
  if (!error->is_ok()) return nullptr;
  return std::make_unique<BounceTransport>(std::move(base), options, std::move(credits));
}

}  // namespace kvt
