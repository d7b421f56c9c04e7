#include "transport/bounce_path.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/copy_choice.h"
#include "transport/bounce_device_mover.h"
#include "transport/bounce_host_mover.h"
#include "transport/bounce_near_link.h"
#include "transport/bounce_socket_link.h"

namespace kvt {
namespace {

// What one turn of the thread launches and asks for at most, so that what was gathered is written meanwhile: a launch
// costs 10 us, a WANT 5.
constexpr std::size_t kStartsPerTurn = 4;
constexpr std::size_t kWantsPerTurn = 4;
// Slices under way to one peer. Far more than others may have, since one of them may wait for its receiver.
constexpr std::size_t kMaxSlices = 64;
// Frames and ends are looked for all the time while they keep coming, where nothing announces frames or a GPU would
// wait for a thread to wake up: a virtual machine takes 15 to 50 us for that, and a sleep of 5 us no less. Unannounced
// frames are looked for now and then while some peer may send one: a WANT waits for half of that on average, which
// costs a few per cent of a core.
constexpr std::chrono::milliseconds kBusyWindow{1};
// The next slice often follows the end of the one before it, by way of the JS thread. Both sides' threads stay awake
// for it, for so long at most after each burst of slices.
constexpr std::chrono::microseconds kLinger{200};
constexpr std::chrono::microseconds kLookInterval{40};

std::size_t pool_bytes(const SlotPool& pool) {
  return pool.slot_stride * static_cast<std::size_t>(pool.slot_count - 1) + pool.slot_bytes;
}

}  // namespace

Status BouncePath::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  processes_epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  processes_.emplace(processes_epoll_.get());
  Status status = base_->open();
  if (status.is_ok()) status = open_arena();
  if (!status.is_ok()) return status;
  if (options_.link == BounceLinkKind::kSocket) {
    link_ = std::make_unique<BounceSocketLink>();
  } else {
    link_ = std::make_unique<BounceNearLink>(base_.get());
  }
  status = link_->open();
  for (const int descriptor : {base_->wait_fd(), link_->wait_fd(), processes_epoll_.get()}) {
    if (descriptor < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
  }
  return status;
}

Status BouncePath::open_arena() {
  const std::size_t bytes = credits_.arena().capacity();
  Status status;
  if (options_.arena_device >= 0) {
    status = open_device_arena(bytes);
    if (status.is_ok()) return status;
    return Status(status.code(), "the bounce arena of " + std::to_string(bytes >> 20) + " MiB on GPU " +
                                     std::to_string(options_.arena_device) +
                                     " (kvCacheBounceSizeMb, bounce.sizeBytes of createAgent): " + status.message());
  }
  status = base_->allocate_region(bytes, &arena_);
  if (!status.is_ok()) {
    return Status(status.code(),
                  "the bounce arena of " + std::to_string(bytes >> 20) +
                      " MiB (kvCacheBounceSizeMb, bounce.sizeBytes of createAgent): " + status.message());
  }
  writes_.set_limits(arena_.kind == MemoryKind::kDevice ? base_->device_limits() : base_->limits());
  if (arena_.kind == MemoryKind::kDevice) {
    mover_ = std::make_unique<BounceDeviceMover>(arena_.device, options_.gather_blocks);
  } else {
    mover_ = std::make_unique<BounceHostMover>();
  }
  return mover_->open();
}

Status BouncePath::open_device_arena(std::size_t bytes) {
  auto mover = std::make_unique<BounceDeviceMover>(options_.arena_device, options_.gather_blocks);
  Status status = mover->open();
  // Plain, so that UCX can share it too.
  if (status.is_ok()) status = DevicePool::allocate(mover->context(), bytes, &device_arena_, PoolMaking::kPlain);
  if (!status.is_ok()) return status;
  arena_ = {device_arena_->base(), bytes, MemoryKind::kDevice, options_.arena_device};
  mover_ = std::move(mover);
  writer_.set_sizing(kDeviceChunks);
  writes_.set_limits(base_->device_limits());
  return base_->register_region(arena_);
}

Status BouncePath::allocate_region(std::size_t size, Region* out) {
  Status status = base_->allocate_region(size, out);
  if (status.is_ok()) note_region(*out);
  return status;
}

Status BouncePath::allocate_device_region(int device, std::size_t size, Region* out) {
  Status status = base_->allocate_device_region(device, size, out);
  if (status.is_ok()) note_region(*out);
  return status;
}

void BouncePath::note_region(const Region& region) {
  if (region.kind == arena_.kind) (void)regions_.add({region.base, region.size});
}

Status BouncePath::register_region(const Region& region) {
  Status status = base_->register_region(region);
  if (status.is_ok()) note_region(region);
  return status;
}

bool BouncePath::takes(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const {
  if (ticket == 0 || !agreed_.contains(peer)) return false;
  for (const PlanGroup& group : groups) {
    if (group.table->fragments().empty()) continue;
    // By the first piece: what JS submits is of one kind.
    return regions_.contains(group.table->fragments().front().source.base, 1) &&
           is_worth_bouncing(groups, thresholds_of(options_));
  }
  return false;
}

SliceRoute BouncePath::route(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const {
  if (!takes(peer, ticket, groups)) return base_->route(peer, ticket, groups);
  // A gather that waits for a forward on the device keeps its staging, and the regions asked for it at the receiver,
  // for as long as that takes: from every other slice here, and from every other writer there. So none is asked for
  // before.
  return {.is_whole = true,
          .limits = {.max_in_flight = kMaxSlices},
          .lane = static_cast<std::uint8_t>(DataPath::kBounce),
          .device_waits = false};
}

bool BouncePath::owns_pools(std::span<const FragmentTable* const> tables, PackedSide side) const {
  return std::all_of(tables.begin(), tables.end(), [&](const FragmentTable* table) {
    return std::all_of(table->fragments().begin(), table->fragments().end(), [&](const Fragment& fragment) {
      const SlotPool& pool = side == PackedSide::kSource ? fragment.source : fragment.destination;
      return regions_.contains(pool.base, pool_bytes(pool));
    });
  });
}

BatchResult BouncePath::post_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                                   const CudaEvent* after) {
  if (!takes(peer, ticket, groups)) return base_->post_slice(batch, peer, ticket, groups, after);
  if (!bounced_.contains(peer)) {
    return failed(Status(StatusCode::kPeerLost, "the connection for bounced slices to this peer is gone"));
  }
  // `route` said that these come without an event; what is gathered before it would be wrong.
  if (after != nullptr) {
    return failed(Status(StatusCode::kInternal, "a bounced slice was posted before its event was reached"));
  }
  std::vector<const FragmentTable*> tables;
  for (const PlanGroup& group : groups) tables.push_back(group.table.get());
  if (!owns_pools(tables, PackedSide::kSource)) {
    return failed(Status(StatusCode::kInvalidArgument, "a pool leaves the memory that its side registered"));
  }
  // The table has the addresses of both sides: the receiver's scatter is told of here too.
  if (arena_.kind == MemoryKind::kDevice && traits_of(groups).alignment < 16) {
    copy_advice_.tell(peer, CopyAdvice::Cause::kUnaligned,
                      {.path = DataPath::kBounce, .bounces_device = true, .has_near_frames = link_->stands_alone(peer)},
                      groups);
  }
  const TimePoint now = std::chrono::steady_clock::now();
  slices_.insert(batch);
  writer_.submit(batch, peer, ticket, split_slice(groups), now);
  act(now);
  return BouncePath::poll(batch);
}

void BouncePath::cancel(BatchId batch) {
  if (!slices_.contains(batch)) {
    base_->cancel(batch);
    return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  writer_.cancel(batch, now);
  act(now);
}

Status BouncePath::expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
  // A writer that will not bounce needs no registration.
  if (!bounced_.contains(peer)) return Status::ok();
  std::vector<const FragmentTable*> tables;
  for (const InboundGroup& group : groups) tables.push_back(group.table.get());
  if (!owns_pools(tables, PackedSide::kDestination)) {
    return Status(StatusCode::kInvalidArgument, "a pool of an inbound group leaves the memory of this agent");
  }
  return reader_.expect(peer, ticket, std::move(groups));
}

bool BouncePath::end_inbound(PeerId peer, Ticket ticket) {
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

BatchResult BouncePath::poll(BatchId batch) {
  const auto ended = ended_.find(batch);
  if (ended != ended_.end()) {
    BatchResult result = std::move(ended->second);
    ended_.erase(ended);
    return result;
  }
  if (slices_.contains(batch)) return {BatchState::kInFlight, false, {}};
  return base_->poll(batch);
}

void BouncePath::take_released(std::vector<BatchId>* out) {
  for (const BatchId id : std::exchange(released_, {})) {
    if (slices_.contains(id)) out->push_back(id);
  }
}

void BouncePath::take_drained(std::vector<BatchId>* out) {
  collect_drained();
  out->insert(out->end(), drained_.begin(), drained_.end());
  drained_.clear();
}

void BouncePath::progress() {
  base_->progress();
  const TimePoint now = std::chrono::steady_clock::now();
  has_posted_ = false;
  writer_.begin_turn(kWantsPerTurn);
  starts_left_ = kStartsPerTurn;
  start_waiting();
  check_peers(now);
  check_processes(now);
  receive_frames(now);
  collect_drained();
  poll_writes(now);
  settle_jobs(now);
  writer_.step(now);
  reader_.step(now);
  act(now);
  post_writes(now);
  if (!parting_.empty()) end_quiet_links();
  // Regions also come back without an act of this turn: the process of their writer ended.
  if (credits_.arena().used() != shown_bytes_) has_changed_ = true;
  if (std::exchange(has_changed_, false)) update_gauges();
}

void BouncePath::update_gauges() {
  shown_bytes_ = credits_.arena().used();
  if (options_.gauges == nullptr) return;
  BounceGauges& gauges = *options_.gauges;
  gauges.set(BounceGauge::kArenaBytes, credits_.arena().capacity());
  gauges.set(BounceGauge::kArenaUsedBytes, credits_.arena().used());
  gauges.set(BounceGauge::kChunksGranted, reader_.granted_now());
  gauges.set(BounceGauge::kChunksWaiting, credits_.waiting());
  gauges.set(BounceGauge::kChunksQuarantined, reader_.quarantined_now());
  gauges.set(BounceGauge::kLostBytes, reader_.lost_bytes());
  gauges.set(BounceGauge::kSlicesSending, slices_.size());
  gauges.set(BounceGauge::kRequestsReceiving, reader_.request_count());
  gauges.set(BounceGauge::kBytesGathered, bytes_gathered_);
  gauges.set(BounceGauge::kBytesScattered, bytes_scattered_);
  gauges.set(BounceGauge::kNacksSent, reader_.counters().nacks);
  gauges.set(BounceGauge::kNacksReceived, writer_.counters().refused);
  gauges.set(BounceGauge::kQuarantinedTotal, reader_.counters().quarantined);
  gauges.set(BounceGauge::kHeldOut, writer_.counters().held_out);
  gauges.set(BounceGauge::kForeignFrames, reader_.counters().foreign_frames + writer_.counters().foreign_frames);
  gauges.set(BounceGauge::kStaleFrames, reader_.counters().stale_frames + writer_.counters().stale_frames);
}

void BouncePath::receive_frames(TimePoint now) {
  frames_.clear();
  lost_.clear();
  link_->progress(&frames_, &lost_);
  if (!frames_.empty()) {
    active_at_ = now;
    has_changed_ = true;
  }
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
  for (const PeerId peer : lost_) {
    lose_bounce(peer, options_.link_end_proves_end && link_->has_ended(peer));
    end_link(peer);
  }
}

void BouncePath::settle_jobs(TimePoint now) {
  mover_->work(&ended_jobs_);
  for (const BounceMover::Ended& ended : std::exchange(ended_jobs_, {})) {
    const auto entry = jobs_.find(ended.id);
    if (entry == jobs_.end()) continue;
    const Job job = entry->second;
    active_at_ = now;
    has_changed_ = true;
    if (const auto* grant = std::get_if<BounceGrant>(&job.work)) {
      // On a lost device nothing says that it ended: it stays unanswered, and so does the end of its receive.
      if (ended.may_still_land) continue;
      scatters_.erase(*grant);
      if (ended.status.is_ok()) bytes_scattered_ += job.bytes;
      reader_.scattered(*grant, ended.status.is_ok(), now);
    } else {
      const auto& chunk = std::get<BounceChunk>(job.work);
      if (ended.may_still_land) {
        writer_.fail(job.slice, ended.status, now);
        continue;
      }
      if (ended.status.is_ok()) bytes_gathered_ += job.bytes;
      const auto request = gathers_.find(chunk.request);
      request->second.erase(chunk.chunk);
      if (request->second.empty()) gathers_.erase(request);
      writer_.gathered(chunk, ended.status, now);
    }
    jobs_.erase(entry);
  }
}

void BouncePath::settle_writes(TimePoint now) {
  for (const BounceWrites::Ended& ended : std::exchange(ended_writes_, {})) {
    writer_.wrote(ended.id, ended.status, ended.may_still_land, now);
    if (ended.may_still_land && ended.has_drained) writer_.write_drained(ended.id);
  }
}

void BouncePath::post_writes(TimePoint now) {
  // A peer takes the end of its link for the end of what this side writes.
  const auto is_reachable = [this](PeerId peer) {
    return bounced_.contains(peer) && std::find(unreachable_.begin(), unreachable_.end(), peer) == unreachable_.end();
  };
  // A base that copies in post() does so once a call, so that neither frames nor other flows wait for more.
  has_posted_ = writes_.post(is_reachable, &ended_writes_);
  settle_writes(now);
  act(now);
}

void BouncePath::poll_writes(TimePoint now) {
  writes_.poll(&ended_writes_);
  settle_writes(now);
  std::erase_if(leaving_, [this](PeerId peer) {
    if (writes_.is_in_flight_to(peer)) return false;
    base_->remove_peer(peer);
    if (!link_->stands_alone(peer)) end_link(peer);
    return true;
  });
}

void BouncePath::collect_drained() {
  std::vector<BounceChunk> chunks;
  writes_.collect_drained(&chunks, &drained_);
  for (const BounceChunk& chunk : chunks) writer_.write_drained(chunk);
}

void BouncePath::act(TimePoint now) {
  // What is done may ask for more at once.
  while (true) {
    writer_.step(now);
    writer_actions_.clear();
    reader_actions_.clear();
    writer_.take_actions(&writer_actions_);
    reader_.take_actions(&reader_actions_);
    if (writer_actions_.empty() && reader_actions_.empty()) return;
    active_at_ = now;
    has_changed_ = true;
    for (BounceWriterAction& action : writer_actions_) std::visit([this](auto& one) { do_action(one); }, action);
    for (BounceReaderAction& action : reader_actions_) std::visit([this](auto& one) { do_action(one); }, action);
  }
}

void BouncePath::do_action(SendBounceFrame& action) {
  // Not here: the state machines are in the middle of something.
  if (!link_->send(action.peer, action.frame)) unreachable_.push_back(action.peer);
}

BounceMover::JobId BouncePath::start_job(Job job, BounceMover::Job move) {
  const BounceMover::JobId id = ++last_job_;
  jobs_.emplace(id, std::move(job));
  move.id = id;
  // A chunk that came is out of the way of others once it is scattered.
  if (move.side == PackedSide::kDestination) {
    mover_->start(std::move(move));
    return id;
  }
  waiting_.push_back(std::move(move));
  start_waiting();
  return id;
}

void BouncePath::start_waiting() {
  for (; starts_left_ > 0 && !waiting_.empty(); --starts_left_) {
    mover_->start(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void BouncePath::do_action(GatherBounceChunk& action) {
  BounceMover::Job move{.groups = {action.plan, &action.plan->sources},
                        .side = PackedSide::kSource,
                        .begin = action.begin,
                        .end = action.end,
                        .linear = arena_.base + action.staging};
  gathers_[action.id.request][action.id.chunk] =
      start_job({action.id, action.slice, action.end - action.begin}, std::move(move));
}

void BouncePath::do_action(DropBounceGather& action) {
  const auto request = gathers_.find(action.id.request);
  if (request == gathers_.end()) return;
  const auto job = request->second.find(action.id.chunk);
  if (job == request->second.end()) return;
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&job](const BounceMover::Job& move) { return move.id == job->second; });
  if (waiting == waiting_.end()) {
    mover_->drop(job->second);
    return;
  }
  ended_jobs_.push_back({job->second, Status(StatusCode::kCancelled, "dropped"), false});
  waiting_.erase(waiting);
}

void BouncePath::do_action(WriteBounceChunk& action) {
  const auto peer = bounced_.find(action.peer);
  // A peer that just went: the next post ends it.
  const std::uint64_t remote = peer == bounced_.end() ? 0 : peer->second.arena_base;
  writes_.add(action.id, action.peer, {arena_.base + action.staging, remote + action.remote_offset, action.bytes});
}

void BouncePath::do_action(BounceSliceEnded& action) {
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

void BouncePath::do_action(ScatterBounceChunk& action) {
  BounceMover::Job move{.groups = action.destinations,
                        .side = PackedSide::kDestination,
                        .begin = action.begin,
                        .end = action.end,
                        .linear = arena_.base + action.offset};
  scatters_[action.grant] = start_job({action.grant, 0, action.end - action.begin}, std::move(move));
}

void BouncePath::do_action(DropBounceScatter& action) {
  const auto job = scatters_.find(action.grant);
  if (job != scatters_.end()) mover_->drop(job->second);
}

std::optional<TimePoint> BouncePath::next_wakeup(TimePoint now) const {
  std::optional<TimePoint> earliest = base_->next_wakeup(now);
  const auto consider = [&earliest](std::optional<TimePoint> at) {
    if (at && (!earliest || *at < *earliest)) earliest = at;
  };
  consider(mover_->next_wakeup(now));
  consider(link_->next_wakeup(now));
  consider(next_look(now));
  consider(writer_.next_deadline());
  consider(reader_.next_deadline());
  consider(processes_->next_deadline());
  if (!unreachable_.empty() || !ended_.empty() || !released_.empty() || !drained_.empty()) return now;
  if (!waiting_.empty() || !ended_jobs_.empty() || writer_.has_wants()) return now;
  // What waits for room towards its peer is called when a batch ends, which the transport below knows.
  if (writes_.can_post() || has_posted_) return now;
  return earliest;
}

std::optional<TimePoint> BouncePath::next_look(TimePoint now) const {
  const auto quiet = now - active_at_;
  const bool expects_frames = writer_.awaits_frames() || reader_.is_serving();
  const bool is_busy = expects_frames && quiet < kBusyWindow;
  if (link_->is_announced()) {
    if (arena_.kind != MemoryKind::kDevice) return std::nullopt;
    const bool has_work = expects_frames || !mover_->is_idle();
    return quiet < (has_work ? std::chrono::microseconds(kBusyWindow) : kLinger) ? std::optional(now) : std::nullopt;
  }
  if (expects_frames) return is_busy ? now : now + kLookInterval;
  return reader_.is_expecting() || !writer_.is_idle() ? std::optional(now + kLookInterval) : std::nullopt;
}

bool BouncePath::close() {
  std::vector<PeerId> peers;
  for (const auto& [peer, head] : bounced_) peers.push_back(peer);
  for (const PeerId peer : peers) lose_bounce(peer, false);
  act(std::chrono::steady_clock::now());
  mover_->work(&ended_jobs_);
  waiting_.clear();
  poll_writes(std::chrono::steady_clock::now());
  link_.reset();
  if (!mover_->is_idle() || mover_->has_lost()) {
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

}  // namespace kvt
