#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/flow_scheduler.h"
#include "engine/submission.h"
#include "transport/transport.h"

namespace kvt {

// Role: takes submissions through the transport: waits for their events, cuts them into batches, lets flows take turns,
// and
//   settles each submission exactly once.
// Threading: the progress thread; holds no lock and no thread of its own, so tests drive it step by step.
// Ownership: borrows the transport.
// Ordering: batches of one flow are posted in order; completions may come in another order.
class TransferLoop {
 public:
  explicit TransferLoop(Transport* transport) : transport_(transport) {}

  // The peer can be posted to from now on.
  void add_peer(PeerId peer) { peers_.try_emplace(peer); }
  // Fails what is not posted yet; the transport forgets the peer when the last batch to it has ended.
  void remove_peer(PeerId peer);

  void submit(Submission submission);
  void cancel(SubmissionId submission);
  // Some event was settled: whoever waits asks again.
  void events_changed();
  // Some submission waits for an event that settles without a call: the thread must step again soon.
  bool polls_events() const { return polled_events_ > 0; }

  // Polls what is in flight and posts at most one batch. True: more could be posted at once.
  bool step();
  // Only posts at most one batch. True: more could be posted at once.
  bool post_next();

  // Everything not posted yet is cancelled with `reason`.
  void cancel_unposted(const Status& reason);
  // Settles what is still open, after the transport closed.
  void abandon_all(bool drained, const Status& reason);

  bool has_in_flight() const { return !batches_.empty(); }
  // Submissions with batches in flight or in quarantine.
  std::size_t unfinished() const { return transfers_.size(); }
  // Moves out what happened since the last call.
  std::vector<Notice> take_notices();

 private:
  // kQueued -> kPosting -> kEnding -> (settled) -> kQuarantined; each step but the first may be skipped.
  enum class Phase : std::uint8_t {
    kQueued,       // in the scheduler, nothing posted
    kPosting,      // in the scheduler, some posted
    kEnding,       // out of the scheduler, batches in flight
    kQuarantined,  // settled as not drained, some batch may still land
  };
  struct Transfer {
    PeerId peer = 0;
    FlowId flow = 0;
    PlanCursor cursor;
    std::shared_ptr<const ReadyEvent> after;
    Phase phase = Phase::kQueued;
    Outcome outcome = Outcome::kTransferred;
    Status error;
    std::uint64_t bytes = 0;
    std::size_t in_flight = 0;
    std::size_t undrained = 0;
    bool is_cancelled = false;  // by its submitter: what stops it for another reason is that reason's failure
    std::optional<TimePoint> posted_at;
    Ticket ticket = 0;
    std::chrono::nanoseconds posting{0};
    std::optional<SliceRoute> route;  // decided when its turn comes
  };
  struct Batch {
    SubmissionId submission = 0;
    PeerId peer = 0;
    std::size_t bytes = 0;
    bool is_whole = false;
    std::uint8_t lane = 0;
  };
  struct Peer {
    std::size_t in_flight = 0;
    std::array<std::size_t, kRouteLanes> by_lane{};
    bool is_leaving = false;
    std::vector<FlowId> parked;  // flows whose head waits for room towards this peer
  };
  // Waits for its transfers; `carrier` is the submission that it came with.
  struct ArmedNote {
    SubmissionId carrier = 0;
    PeerId peer = 0;
    std::vector<std::byte> bytes;
    std::size_t waits_for = 0;
    bool is_over = false;
  };
  struct Waiting {
    FlowId flow = 0;
    std::shared_ptr<const ReadyEvent> event;
  };

  void poll_batches();
  void collect_released();
  void collect_drained();
  // Whether the head may be posted; parks or settles it otherwise.
  bool is_postable(SubmissionId id, Transfer* transfer);
  void post(SubmissionId id, Transfer* transfer);
  // What of it is posted is not wanted any more.
  void cancel_batches(SubmissionId id);
  // Slices that wait on the device for an event which failed since are taken back.
  void stop_behind_failed_events();
  // True: the event that a slice was queued behind has failed, and the slice with it.
  static bool fails_with_event(Transfer* transfer, EventState state);
  BatchResult post_runs(BatchId batch, Transfer* transfer, std::size_t* bytes);
  BatchResult post_whole(BatchId batch, Transfer* transfer, std::size_t* bytes);
  void end_batch(BatchId id, const Batch& batch, BatchResult result);
  // Nothing more of it is posted; it settles when its batches have ended.
  void stop(SubmissionId id, Transfer* transfer, Outcome outcome, Status error);
  void settle_if_ended(SubmissionId id, Transfer* transfer);
  void forget_peer_if_ended(PeerId peer);
  void arm_note(Submission* submission);
  // What the end of a submission, or a cancel, means for the notes that wait for it.
  void note_arrived(SubmissionId id);
  void drop_notes(SubmissionId id);
  void end_note(ArmedNote* note, bool is_sent);

  Transport* transport_;
  FlowScheduler scheduler_;
  std::unordered_map<SubmissionId, Transfer> transfers_;
  std::unordered_map<BatchId, Batch> batches_;             // in flight
  std::unordered_map<BatchId, SubmissionId> quarantined_;  // failed, may still land
  std::unordered_map<PeerId, Peer> peers_;
  std::vector<Waiting> waiting_;
  std::size_t polled_events_ = 0;  // of waiting_, those with a device's event
  // By each submission that a note still waits for; one may be waited for by several.
  std::unordered_multimap<SubmissionId, std::shared_ptr<ArmedNote>> armed_;
  std::vector<Notice> notices_;
  BatchId last_batch_ = 0;
  // Kept between steps for their capacity.
  std::vector<Run> runs_;
  std::vector<BatchId> scratch_;
};

}  // namespace kvt
