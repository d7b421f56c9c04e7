#pragma once

#include <deque>
#include <memory>
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
#include "transport/bounce_link.h"
#include "transport/bounce_metadata.h"
#include "transport/bounce_mover.h"
#include "transport/bounce_transport.h"
#include "transport/bounce_writes.h"
#include "transport/copy_advice.h"
#include "transport/process_watch.h"

namespace kvt {

// Role: Transport that bounces what is worth it and hands everything else to the one below.
// Threading: the progress thread. The two state machines of core decide; this class carries out what they ask for.
// Ownership: owns the transport below, the arena (a region of it), link and mover.
// Ordering: one call of progress() moves at most a turn of the mover and one write that the caller's thread copies.
class BouncePath final : public Transport {
 public:
  BouncePath(std::unique_ptr<Transport> base, const BounceOptions& options, CreditScheduler credits)
      : base_(std::move(base)),
        options_(options),
        credits_(std::move(credits)),
        writer_(&credits_, timeouts(options), options.max_inflight_chunks),
        reader_(&credits_, timeouts(options)),
        writes_(base_.get()) {}

  Status open() override;
  Status allocate_region(std::size_t size, Region* out) override;
  Status allocate_device_region(int device, std::size_t size, Region* out) override;
  Status register_region(const Region& region) override;
  Status metadata(std::vector<std::byte>* out) override;
  Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) override;
  PeerState poll_peer(PeerId peer, Status* error) override;
  void remove_peer(PeerId peer) override;
  bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const override {
    return base_->peer_owns(peer, address, size);
  }
  std::vector<Region> peer_regions(PeerId peer) const override { return base_->peer_regions(peer); }
  PeerPaths peer_paths(PeerId peer) const override;
  void name_peer(PeerId peer, const std::string& name) override {
    base_->name_peer(peer, name);
    copy_advice_.name_peer(peer, name);
  }
  std::string measured_speed(PeerId peer, MemoryKind kind) const override { return base_->measured_speed(peer, kind); }
  BatchLimits limits() const override { return base_->limits(); }
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override {
    return base_->post(batch, peer, runs);
  }
  bool takes_slices() const override { return base_->takes_slices(); }
  SliceRoute route(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const override;
  BatchResult post_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                         const CudaEvent* after) override;
  void cancel(BatchId batch) override;
  Status expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) override;
  bool end_inbound(PeerId peer, Ticket ticket) override;
  BatchResult poll(BatchId batch) override;
  void take_released(std::vector<BatchId>* out) override;
  void take_drained(std::vector<BatchId>* out) override;
  void progress() override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  int wait_fd() const override { return epoll_.get(); }
  bool has_bounce_head() const override { return true; }
  bool is_at_rest() const override { return waiting_.empty() && mover_->is_idle() && base_->is_at_rest(); }
  Status flush_inbound() override { return base_->flush_inbound(); }
  void take_advice(std::vector<std::string>* out) override;
  bool close() override;

 private:
  struct Job {
    std::variant<BounceChunk, BounceGrant> work;
    BounceSlice slice = 0;
    std::uint64_t bytes = 0;
  };

  static BounceTimeouts timeouts(const BounceOptions& options) { return {.request = options.request_timeout}; }
  static BatchResult failed(Status error) { return {BatchState::kFailed, false, std::move(error)}; }

  Status open_arena();
  Status open_device_arena(std::size_t bytes);
  bool is_bounced(BatchId batch) const { return slices_.contains(batch) || ended_.contains(batch); }
  // The same answer for a slice from its route to its post: a peer agrees for as long as it is there.
  bool takes(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const;
  // Pages of another kind of memory than the arena's are moved by the transport below alone.
  void note_region(const Region& region);
  std::string why_not(const BounceMetadata* head) const;
  void refuse_bounce(PeerId peer, std::string why);
  bool owns_pools(std::span<const FragmentTable* const> tables, PackedSide side) const;
  void connect_bounce(PeerId peer);
  void lose_bounce(PeerId peer, bool is_proven);
  void watch(PeerId peer, const BounceMetadata& head);
  // No frame comes or goes any more.
  void end_link(PeerId peer);
  // Ends the links on which nothing is to be said any more.
  void end_quiet_links();
  void check_peers(TimePoint now);
  void check_processes(TimePoint now);
  // Tells, once, that a part of the arena is lost for as long as nothing proves the end of a writer.
  void advise_of_loss();

  void receive_frames(TimePoint now);
  void settle_jobs(TimePoint now);
  void poll_writes(TimePoint now);
  void settle_writes(TimePoint now);
  void post_writes(TimePoint now);
  void collect_drained();
  void act(TimePoint now);
  void update_gauges();
  // When frames are looked for that nothing announces.
  std::optional<TimePoint> next_look(TimePoint now) const;

  void do_action(SendBounceFrame& action);
  void do_action(GatherBounceChunk& action);
  void do_action(DropBounceGather& action);
  void do_action(WriteBounceChunk& action);
  void do_action(BounceSourceReleased& action) { released_.push_back(action.slice); }
  void do_action(BounceSliceEnded& action);
  void do_action(BounceSliceDrained& action) { drained_.push_back(action.slice); }
  void do_action(ScatterBounceChunk& action);
  void do_action(DropBounceScatter& action);
  void do_action(BounceInboundEnded& action) { ending_.erase({action.peer, action.ticket}); }
  BounceMover::JobId start_job(Job job, BounceMover::Job move);
  void start_waiting();

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
  std::unordered_map<PeerId, PathState> states_;
  std::vector<std::string> advice_;
  CopyAdvice copy_advice_;
  // Peers that were bounced to at some time. When the link to one breaks, its slices fail instead of going another way:
  // its receiver counts on it that nobody but itself writes into the pages of a ticket.
  std::unordered_set<PeerId> agreed_;
  std::vector<PeerId> unreachable_;
  std::set<PeerId> leaving_;  // removed, but writes to them still run
  // Removed or lost, but their links stand until each side has said which of its writes into the other's arena ended.
  std::set<PeerId> parting_;
  TimePoint peers_checked_at_{};
  UniqueFd processes_epoll_;
  std::optional<ProcessWatcher> processes_;
  std::unordered_set<PeerId> watched_;
  TimePoint processes_checked_at_{};
  bool has_advised_of_loss_ = false;

  std::unordered_set<BatchId> slices_;  // in flight
  std::unordered_map<BatchId, BatchResult> ended_;
  std::vector<BatchId> released_;
  std::vector<BatchId> drained_;
  std::set<std::pair<PeerId, Ticket>> ending_;

  std::unordered_map<BounceMover::JobId, Job> jobs_;
  std::unordered_map<BounceRequest, std::unordered_map<std::uint32_t, BounceMover::JobId>> gathers_;
  std::unordered_map<BounceGrant, BounceMover::JobId> scatters_;
  BounceMover::JobId last_job_ = 0;
  // Gathers of this turn that may still be launched, and those that wait for the next one.
  std::size_t starts_left_ = 0;
  std::deque<BounceMover::Job> waiting_;

  BounceWrites writes_;
  bool has_posted_ = false;
  // A frame came or went, or a job ended.
  TimePoint active_at_{};
  bool has_changed_ = true;
  std::uint64_t shown_bytes_ = 0;  // of the arena in use, when the gauges were last set
  std::uint64_t bytes_gathered_ = 0;
  std::uint64_t bytes_scattered_ = 0;

  // Kept for their capacity.
  std::vector<BounceWriterAction> writer_actions_;
  std::vector<BounceReaderAction> reader_actions_;
  std::vector<BounceMover::Ended> ended_jobs_;
  std::vector<Message> frames_;
  std::vector<PeerId> lost_;
  std::vector<BounceWrites::Ended> ended_writes_;
};

}  // namespace kvt
