#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bounce_plan.h"
#include "core/path_cost.h"
#include "core/plan_cursor.h"
#include "core/run.h"
#include "core/status.h"
#include "transport/path_options.h"

namespace kvt {

class CudaEvent;

using PeerId = std::uint32_t;
using BatchId = std::uint64_t;
// One receive, as its receiver calls it; 0: the submission does not say.
using Ticket = std::uint64_t;
// Names a process that is watched; chosen by the caller.
using WatchId = std::uint64_t;
using TimePoint = std::chrono::steady_clock::time_point;

enum class MemoryKind : std::uint8_t { kHost = 0, kDevice = 1 };

// Memory of this process that peers may write to and that may be written from.
struct Region {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device = -1;
};

enum class PeerState : std::uint8_t { kConnecting, kReady, kFailed };
enum class BatchState : std::uint8_t { kInFlight, kDone, kFailed };

// What became of a batch.
// may_still_land: after kFailed, whether some of its bytes may yet be read or written. The transport then keeps the
// batch in quarantine and says through take_drained() when that is over.
struct BatchResult {
  BatchState state = BatchState::kInFlight;
  bool may_still_land = false;
  Status error;
};

// How much one post may carry, so that a large slice never delays a small one by more than one batch.
// max_in_flight counts per peer: a peer that stalls never holds up the others.
struct BatchLimits {
  std::size_t max_runs = 64;
  std::size_t max_bytes = std::size_t{4} << 20;
  std::size_t max_in_flight = 2;
};

// How one slice goes to one peer.
struct SliceRoute {
  // Through post_slice, which takes it whole and lets the device wait for its event.
  bool is_whole = false;
  BatchLimits limits;
  // Batches are counted against max_in_flight per peer and lane, so that paths do not hold each other up.
  std::uint8_t lane = 0;
  // Of a whole slice: false where the device must not be given it before its event was reached.
  bool device_waits = true;
};
inline constexpr std::size_t kRouteLanes = kDataPathCount;

// A note of another agent's, which is named by the watch on its process.
struct InboundNote {
  // kSoon: what it will be, unless it never comes; nothing is true yet.
  enum class Kind : std::uint8_t { kNote, kSoon };
  WatchId from = 0;
  Kind kind = Kind::kNote;
  std::vector<std::byte> bytes;
};

// Role: moves runs of bytes into peers' memory.
// Threading: every method is called on the one progress thread of its agent, the constructor and destructor included,
//   unless a comment says otherwise.
// Ownership: owns the regions it allocates; they stay mapped and registered while a batch may still land.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // May take as long as it needs (NIXL: 0.4 s without a GPU). Called once, before anything else.
  virtual Status open() = 0;

  // Zeroed, resident, registered. `out` is set only on success.
  virtual Status allocate_region(std::size_t size, Region* out) = 0;

  // Zeroed memory of a GPU, registered.
  virtual Status allocate_device_region(int device, std::size_t size, Region* out) {
    (void)device, (void)size, (void)out;
    return Status(StatusCode::kCapability, "this agent has host memory only");
  }

  // Memory that the caller owns and keeps alive until the transport has closed. kCapability where the transport has no
  // use for memory of its kind.
  virtual Status register_region(const Region& region) {
    (void)region;
    return Status(StatusCode::kCapability, "this agent moves only memory that it allocated");
  }

  // What a peer needs to reach every region allocated so far. Opaque to callers.
  virtual Status metadata(std::vector<std::byte>* out) = 0;

  // Starts to connect; poll_peer says when the peer may be posted to. `metadata` is untrusted: every length is checked.
  virtual Status begin_add_peer(PeerId peer, std::span<const std::byte> metadata) = 0;
  // What its advice calls a peer that was added.
  virtual void name_peer(PeerId peer, const std::string& name) { (void)peer, (void)name; }
  virtual PeerState poll_peer(PeerId peer, Status* error) = 0;

  // The caller has no batch to this peer in flight (quarantined ones may exist). Idempotent.
  virtual void remove_peer(PeerId peer) = 0;

  // Whether [address, address + size) lies inside one region that the peer published. Untrusted page tables are checked
  // with it.
  virtual bool peer_owns(PeerId peer, std::uintptr_t address, std::size_t size) const = 0;

  // The regions that a ready peer published, by the peer's own addresses; what peer_owns answers from. The engine takes
  // a copy when the peer becomes ready, so that the JS thread can check page tables without waiting for this thread.
  virtual std::vector<Region> peer_regions(PeerId peer) const = 0;

  // By which paths the device memory of a ready peer can be reached.
  virtual PeerPaths peer_paths(PeerId peer) const {
    (void)peer;
    return {};
  }

  // How fast memory of a kind was found to move to a ready peer, in words; empty when it was not measured.
  virtual std::string measured_speed(PeerId peer, MemoryKind kind) const {
    (void)peer, (void)kind;
    return {};
  }

  virtual BatchLimits limits() const = 0;
  // Of batches between device memories.
  virtual BatchLimits device_limits() const { return limits(); }

  // Asked once for each slice, when its turn comes.
  virtual SliceRoute route(PeerId peer, Ticket ticket, std::span<const PlanGroup> groups) const {
    (void)peer, (void)ticket, (void)groups;
    return {takes_slices(), limits(), 0};
  }

  // Starts one batch. kDone and kFailed are final; kInFlight is to be polled until it is not. The runs are copied if
  // needed.
  virtual BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) = 0;
  virtual BatchResult poll(BatchId batch) = 0;

  // A transport that expands slices where the bytes are takes them whole: one batch, whatever limits() says of runs and
  // bytes. `after` (null: none) is then waited for by the device, not by the caller; it stays alive until the batch is
  // final. Slots were checked against their tables, tables against nothing: regions are the transport's to check.
  virtual bool takes_slices() const { return false; }
  virtual BatchResult post_slice(BatchId batch, PeerId peer, Ticket ticket, std::span<const PlanGroup> groups,
                                 const CudaEvent* after) {
    (void)batch, (void)peer, (void)ticket, (void)groups, (void)after;
    return {BatchState::kFailed, false, Status(StatusCode::kInternal, "this transport takes runs, not slices")};
  }
  // A slice in flight is not wanted any more. It still ends through poll; with kCancelled when this stopped it.
  virtual void cancel(BatchId batch) { (void)batch; }

  // Slots that slices under `ticket` may be scattered into by this side. Paths on which the writer names addresses have
  // no use for it.
  virtual Status expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
    (void)peer, (void)ticket, (void)groups;
    return Status::ok();
  }
  // Stops that. True once this side scatters nothing of the ticket any more; until then to be asked again.
  virtual bool end_inbound(PeerId peer, Ticket ticket) {
    (void)peer, (void)ticket;
    return true;
  }

  // Whether metadata() begins with what a bounce agent puts before its transport's own, and begin_add_peer reads it.
  virtual bool has_bounce_head() const { return false; }

  // Small messages to a peer's agent, for the control of a path; at most 4 KiB, from any side, in any order, may get
  // lost. kCapability where there are none.
  struct Message {
    PeerId peer = 0;
    std::vector<std::byte> bytes;
  };
  virtual Status send_message(PeerId peer, std::span<const std::byte> bytes) {
    (void)peer, (void)bytes;
    return Status(StatusCode::kCapability, "this transport carries no messages");
  }
  // Appends what came from peers that were added.
  virtual void take_messages(std::vector<Message>* out) { (void)out; }

  // Notes: small texts to a peer's agent that may get lost, come twice, or before or after anything else. They are for
  // what this agent's user would otherwise say another, slower way; where there are none, nothing is missing.
  // This one will be sent soon, if at all: the other side gets ready for it.
  virtual void announce_note(PeerId peer, std::span<const std::byte> note) { (void)peer, (void)note; }
  // False: it was not sent and will not be. Never waits.
  virtual bool send_note(PeerId peer, std::span<const std::byte> note) {
    (void)peer, (void)note;
    return false;
  }
  // Appends what came from the agents of watched processes.
  virtual void take_notes(std::vector<InboundNote>* out) { (void)out; }

  // Slices in flight whose source pages are not needed any more, whatever the slice still waits for. At most once each,
  // and not of those that ended. Appends.
  virtual void take_released(std::vector<BatchId>* out) { (void)out; }

  // Batches that failed with may_still_land and cannot touch memory any more. Appends.
  virtual void take_drained(std::vector<BatchId>* out) = 0;

  // Asks to be told, through take_ended, when the process that published `metadata` has ended: from then on nothing
  // that it started can write into memory of this machine any more. kCapability when that cannot be told from here
  // (another machine, another process namespace).
  virtual Status watch_process(WatchId watch, std::span<const std::byte> metadata) {
    (void)watch, (void)metadata;
    return Status(StatusCode::kCapability, "this agent cannot watch processes");
  }
  virtual void unwatch_process(WatchId watch) { (void)watch; }
  // Each watch at most once. Appends.
  virtual void take_ended(std::vector<WatchId>* out) { (void)out; }

  // Called before the consumer of device memory reads what peers wrote, where a network card may have written it: makes
  // that visible to the GPU's kernels where the GPU does not do so by itself.
  virtual Status flush_inbound() { return Status::ok(); }

  // What goes another way than it might, and why; each text once. Appends.
  virtual void take_advice(std::vector<std::string>* out) { (void)out; }

  // Drives what needs driving without a batch of our own: inbound writes, wire-up, hand-over of memory to peers.
  virtual void progress() = 0;

  // When the thread must call again at the latest although no command arrives; nullopt = only when a command arrives.
  // Batches in flight and connecting peers count.
  virtual std::optional<TimePoint> next_wakeup(TimePoint now) const = 0;

  // A descriptor that polls readable when progress() has something to do, so that an idle agent need not wake up to
  // look. -1: none.
  virtual int wait_fd() const { return -1; }

  // False while something that was given up still reads memory of this side, which close() would have to leave behind.
  // An engine that closes waits for it as long as its deadline allows.
  virtual bool is_at_rest() const { return true; }

  // Releases everything. False when a batch may still land: then regions stay mapped and registered, on purpose, for
  // ever.
  virtual bool close() = 0;
};

}  // namespace kvt
