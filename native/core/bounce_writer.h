#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "core/bounce_frame.h"
#include "core/bounce_plan.h"
#include "core/credit_scheduler.h"
#include "core/status.h"

namespace kvt {

using BouncePeer = std::uint32_t;
using BounceSlice = std::uint64_t;    // the caller's number of a slice
using BounceRequest = std::uint64_t;  // our number of a part of it, never used twice

struct BounceTimeouts {
  std::chrono::milliseconds request{30000};
  // A failure is held for the answers to what was handed over, at most this long and at most `request`.
  std::chrono::milliseconds hold{5000};
};

struct BounceChunk {
  BounceRequest request = 0;
  std::uint32_t chunk = 0;
  bool operator==(const BounceChunk&) const = default;
};

struct SendBounceFrame {
  BouncePeer peer = 0;
  std::vector<std::byte> frame;
};
// Canonical bytes [begin, end) of the plan go to the arena's `staging`. Answered by gathered().
struct GatherBounceChunk {
  BounceChunk id;
  BounceSlice slice = 0;
  std::shared_ptr<const BounceRequestPlan> plan;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t staging = 0;
};
// Not needed any more; still answered by gathered(), at once or, where it cannot be stopped, when it ends.
struct DropBounceGather {
  BounceChunk id;
};
// Its source pages are free, whatever the rest of it still waits for: each was gathered, or what is gathered of it from
// here on is thrown away. Comes before BounceSliceEnded, or not at all when that says as much.
struct BounceSourceReleased {
  BounceSlice slice = 0;
};
// Answered by wrote() and, when that said so, by write_drained().
struct WriteBounceChunk {
  BounceChunk id;
  BouncePeer peer = 0;
  std::uint64_t staging = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t bytes = 0;
};
enum class BounceOutcome : std::uint8_t { kTransferred, kFailed, kCancelled };
// drained: nothing of it is read here or scattered there any more. Otherwise BounceSliceDrained follows.
struct BounceSliceEnded {
  BounceSlice slice = 0;
  BounceOutcome outcome = BounceOutcome::kTransferred;
  std::uint64_t bytes = 0;
  bool drained = true;
  Status error;
};
struct BounceSliceDrained {
  BounceSlice slice = 0;
};
using BounceWriterAction = std::variant<SendBounceFrame, GatherBounceChunk, DropBounceGather, BounceSourceReleased,
                                        WriteBounceChunk, BounceSliceEnded, BounceSliceDrained>;

struct BounceWriterCounters {
  std::uint64_t foreign_frames = 0;  // from another peer than the request's, or for a chunk it does not have
  std::uint64_t stale_frames = 0;    // doubled, or for a request that is over
  std::uint64_t held_out = 0;        // failures reported before every answer had come
  std::uint64_t refused = 0;         // NACKs that ended a request of ours
};

// Role: the writing side of every bounced slice: asks for regions, has chunks gathered and written, tells the reader.
// Why it never names a destination: the reader computes that. All this side can touch is a region while it holds its
//   grant.
// Threading: one thread, no clock: time is a parameter. Calls only change state; what is to be done comes out of
//   take_actions, in order.
// Ordering: DATA leaves after its write ended here. CANCEL leaves after the last write of its request ended, and names
//   the grants in which something may still land; it is repeated as they drain.
class BounceWriter {
 public:
  BounceWriter(CreditScheduler* arena, BounceTimeouts timeouts, std::size_t max_inflight_chunks,
               ChunkSizing sizing = {})
      : arena_(arena), timeouts_(timeouts), max_inflight_(max_inflight_chunks), sizing_(sizing) {}

  // Before the first slice.
  void set_sizing(ChunkSizing sizing) { sizing_ = sizing; }

  // `max_chunk`: what both sides agreed on. `remote_arena_bytes` bounds every grant.
  void add_peer(BouncePeer peer, std::uint64_t max_chunk, std::uint64_t remote_arena_bytes);
  // Everything to it fails. The peer is still told, where frames reach it, when what it granted is not written any
  // more.
  void remove_peer(BouncePeer peer, BounceTime now);
  // A removed peer was not told that yet.
  bool owes(BouncePeer peer) const;
  bool has_peer(BouncePeer peer) const { return peers_.contains(peer); }

  // The slice ends by exactly one BounceSliceEnded. The peer was added.
  void submit(BounceSlice slice, BouncePeer peer, std::uint64_t ticket, std::vector<BounceRequestPlan> plans,
              BounceTime now);
  void cancel(BounceSlice slice, BounceTime now);
  // For a reason that the caller knows. Unknown slices are ignored.
  void fail(BounceSlice slice, Status error, BounceTime now);

  // GRANT, ACK or NACK.
  void on_frame(BouncePeer from, const BounceFrame& frame, BounceTime now);
  void gathered(BounceChunk id, const Status& status, BounceTime now);
  // may_still_land counts after a failure only.
  void wrote(BounceChunk id, const Status& status, bool may_still_land, BounceTime now);
  void write_drained(BounceChunk id);

  // At most so many WANTs leave until the next call, so that the first chunks of a large slice are on their way before
  // its last WANT is. Never called: as many as there are.
  void begin_turn(std::size_t wants) { wants_left_ = wants; }
  // A WANT waits for the next turn.
  bool has_wants() const;
  // Lends staging that became free, ends what takes too long.
  void step(BounceTime now);
  std::optional<BounceTime> next_deadline() const;

  void take_actions(std::vector<BounceWriterAction>* out);
  const BounceWriterCounters& counters() const { return counters_; }
  // Nothing is read, written or owed.
  bool is_idle() const { return slices_.empty() && requests_.empty(); }
  // The reader's next frame lets something go on; otherwise this side's own gathers do.
  bool awaits_frames() const;
  std::size_t request_count() const { return requests_.size(); }

 private:
  enum class ChunkState : std::uint8_t {
    kWaiting,  // no staging
    kGathering,
    kGathered,  // waits for its grant
    kWriting,
    kSent,      // DATA is out
    kAnswered,  // ACKed, or its request was NACKed
    kUnproven,  // its write failed and may still land
    kDropped,   // given up, touches nothing
    // Given up while it was gathered, by something that cannot be stopped: what that still reads is thrown away, so the
    // pages are free; the staging is not.
    kDiscarding,
  };
  struct Chunk {
    ChunkState state = ChunkState::kWaiting;
    std::optional<GrantedChunk> grant;
    std::uint64_t staging = 0;
  };
  enum class RequestState : std::uint8_t {
    kQueued,  // WANT not sent
    kActive,
    kEnding,  // failed, refused or cancelled: writes end, answers come
    kEnded,   // does not count for its slice any more; some write may still land
  };
  struct Request {
    BounceSlice slice = 0;
    BouncePeer peer = 0;
    std::uint64_t ticket = 0;
    std::shared_ptr<const BounceRequestPlan> plan;
    std::uint32_t chunk_bytes = 0;
    RequestState state = RequestState::kQueued;
    std::vector<Chunk> chunks;
    // Chunks are staged in order: those before are not kWaiting.
    std::uint32_t next_stage = 0;
    std::uint32_t acked = 0;
    std::uint32_t unproven = 0;
    std::array<std::uint32_t, 9> count{};  // of chunks by state
    BounceTime progress_at{};
    bool cancel_sent = false;
    bool was_refused = false;
  };
  struct Slice {
    BouncePeer peer = 0;
    std::vector<BounceRequest> requests;  // not over yet
    BounceOutcome outcome = BounceOutcome::kTransferred;
    Status error;
    std::uint64_t bytes = 0;
    std::optional<BounceTime> hold_until;
    bool was_reported = false;
    bool was_released = false;
  };
  struct Peer {
    std::uint64_t max_chunk = 0;
    std::uint64_t arena_bytes = 0;
    std::deque<BounceRequest> queued;
    std::size_t open = 0;  // requests whose WANT is out and that are not over
  };

  static std::uint64_t begin_of(const Request& request, std::uint32_t chunk);
  static std::uint64_t end_of(const Request& request, std::uint32_t chunk);
  static std::uint32_t count_of(const Request& request, ChunkState state);
  static bool is_quiet(const Request& request);

  // In place: GCC 12 warns about a variant that is moved.
  template <typename Action>
  void emit(Action action) {
    actions_.emplace_back(std::in_place_type<Action>, std::move(action));
  }
  void move(Request* request, Chunk* chunk, ChunkState to);
  void send(const Request& request, const BounceFrame& frame);
  BounceFrame frame_of(BounceRequest id, const Request& request, BounceFrameType type) const;
  void send_want(BounceRequest id, Request* request, BounceTime now);
  void send_cancel(BounceRequest id, Request* request);
  void open_queued(BouncePeer peer, BounceTime now);
  void on_grant(BounceRequest id, Request* request, const BounceFrame& frame, BounceTime now);
  void on_ack(BounceRequest id, Request* request, const BounceFrame& frame, BounceTime now);
  void write_if_ready(BounceRequest id, Request* request, std::uint32_t chunk);
  void release_staging(Chunk* chunk);
  bool stage_next(BounceRequest id, Request* request, BounceTime now);

  void fail_slice(BounceSlice id, BounceOutcome outcome, Status error, BounceTime now);
  void end_request(BounceRequest id, Request* request);
  // Ends the request when nothing of it is running or owed.
  void settle_request(BounceRequest id, BounceTime now);
  void forget_request(BounceRequest id);
  void settle_slice(BounceSlice id);
  // Says so, once, when nothing of the slice is to be gathered any more.
  void release_source(BounceSlice id, Slice* slice);

  CreditScheduler* arena_;
  BounceTimeouts timeouts_;
  std::size_t max_inflight_;
  ChunkSizing sizing_;
  std::size_t wants_left_ = ~std::size_t{0};
  std::unordered_map<BouncePeer, Peer> peers_;
  std::unordered_set<BouncePeer> parting_;  // removed, and owed the end of some write
  std::map<BounceSlice, Slice> slices_;
  std::map<BounceRequest, Request> requests_;
  BounceRequest last_request_ = 0;
  BounceRequest stage_turn_ = 0;  // the request that was staged last
  std::vector<BounceWriterAction> actions_;
  BounceWriterCounters counters_;
};

}  // namespace kvt
