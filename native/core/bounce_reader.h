#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "core/bounce_frame.h"
#include "core/bounce_plan.h"
#include "core/bounce_writer.h"
#include "core/credit_scheduler.h"
#include "core/slot_set.h"
#include "core/status.h"

namespace kvt {

using BounceGrant = std::uint64_t;  // never used twice

// The arena's `offset` holds canonical bytes [begin, end) of these groups. Answered by scattered().
struct ScatterBounceChunk {
  BounceGrant grant = 0;
  std::shared_ptr<const std::vector<PackedGroup>> destinations;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;
};
// Not wanted any more; still answered by scattered(), at once where it can be stopped.
struct DropBounceScatter {
  BounceGrant grant = 0;
};
// No page of the ticket is touched from here on.
struct BounceInboundEnded {
  BouncePeer peer = 0;
  std::uint64_t ticket = 0;
};
using BounceReaderAction = std::variant<SendBounceFrame, ScatterBounceChunk, DropBounceScatter, BounceInboundEnded>;

struct BounceReaderCounters {
  std::uint64_t foreign_frames = 0;    // a grant or request of another peer
  std::uint64_t stale_frames = 0;      // doubled, or of something that is over
  std::uint64_t refused_requests = 0;  // answered NACK at once
  std::uint64_t nacks = 0;             // sent, whatever for
  std::uint64_t quarantined = 0;       // regions set aside because a write might land
};

// Role: the reading side: says who may write where in the arena, and puts what came into pages.
// Why a writer cannot touch a page: destinations come from what expect() registered, never from a frame, and each slot
//   of a WANT is looked up there.
// Invariant: a region is granted to one chunk at a time, and again only when the write into it is known to have ended:
//   by its DATA, by a CANCEL that does not name it, or by a proof that its writer's process writes no more. Until then
//   it is in quarantine, whatever became of request and writer, and however long that takes: a writer that was stopped
//   goes on where it stopped.
// Threading: one thread, no clock: time is a parameter. What is to be done comes out of take_actions, in order.
class BounceReader {
 public:
  BounceReader(CreditScheduler* arena, BounceTimeouts timeouts) : arena_(arena), timeouts_(timeouts) {}

  void add_peer(BouncePeer peer) { peers_.insert(peer); }
  // Its tickets stay until they are ended, but nothing is scattered for them. Of its frames only those are heard from
  // here on that say which of its writes have ended. `is_proven`: all have.
  void remove_peer(BouncePeer peer, bool is_proven, BounceTime now);
  // Nothing that a removed peer wrote can land any more.
  void prove_end(BouncePeer peer, BounceTime now);
  // A removed peer may still write somewhere.
  bool is_unproven(BouncePeer peer) const { return parting_.contains(peer); }

  // kState when the peer is unknown or the ticket registered; kInvalidArgument when a slot is out of its table's range
  // or a key comes twice.
  Status expect(BouncePeer peer, std::uint64_t ticket, std::vector<InboundGroup> groups);
  // BounceInboundEnded follows once no scatter of it runs; unknown tickets are ended already.
  void end(BouncePeer peer, std::uint64_t ticket, BounceTime now);

  // WANT, DATA or CANCEL.
  void on_frame(BouncePeer from, const BounceFrame& frame, BounceTime now);
  // is_complete: all its bytes are in their pages; else they are not and never will be.
  void scattered(BounceGrant grant, bool is_complete, BounceTime now);

  void step(BounceTime now);
  std::optional<BounceTime> next_deadline() const;

  void take_actions(std::vector<BounceReaderAction>* out);
  const BounceReaderCounters& counters() const { return counters_; }
  std::size_t quarantined_now() const;
  // Of the arena, under regions that peers which were removed may still write.
  std::uint64_t lost_bytes() const;
  bool is_scattering(BouncePeer peer, std::uint64_t ticket) const;
  // Some writer is being served, so that frames are about to come.
  bool is_serving() const;
  // Some writer may ask.
  bool is_expecting() const { return !inbound_.empty(); }
  std::size_t request_count() const { return requests_.size(); }
  std::size_t granted_now() const { return grants_.size() - quarantined_now(); }
  // Nothing is granted, scattered or set aside.
  bool is_idle() const { return grants_.empty() && requests_.empty() && parked_.empty(); }

 private:
  using TicketKey = std::pair<BouncePeer, std::uint64_t>;
  using RequestKey = std::pair<BouncePeer, BounceRequest>;

  enum class GrantState : std::uint8_t {
    kGranted,  // its writer may write
    kScattering,
    kDropping,     // being scattered, and told to stop
    kQuarantined,  // nobody wants what comes, and it may still come
  };
  struct Grant {
    RequestKey request;
    FlowId flow = 0;
    std::uint32_t chunk = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    GrantState state = GrantState::kGranted;
  };
  enum class RequestState : std::uint8_t {
    kActive,
    kClosing,   // some scatter still runs; NACK follows
    kAnswered,  // every ACK or the NACK is out; waits for the end of its grants
  };
  struct Request {
    TicketKey ticket;
    FlowId flow = 0;
    ItemId item = 0;
    std::shared_ptr<const std::vector<PackedGroup>> destinations;
    std::uint64_t total_bytes = 0;
    std::uint32_t chunk_bytes = 0;
    std::uint32_t chunks_left = 0;
    RequestState state = RequestState::kActive;
    BounceRefusal refusal = BounceRefusal::kEnded;
    std::vector<BounceGrant> grants;
    std::size_t scattering = 0;
    BounceTime progress_at{};
  };
  struct Destination {
    std::shared_ptr<const FragmentTable> table;
    SlotSet slots;
  };
  struct Inbound {
    std::unordered_map<std::uint32_t, Destination> groups;
    FlowId flow = 0;
    std::size_t scattering = 0;
    // Nothing new is taken; the last scatter ends it.
    bool is_ending = false;
    bool is_orphaned = false;
  };
  struct Parked {
    BouncePeer peer = 0;
    BounceFrame want;
    BounceTime until;
  };

  template <typename Action>
  void emit(Action action) {
    actions_.emplace_back(std::in_place_type<Action>, std::move(action));
  }
  void on_want(BouncePeer from, const BounceFrame& frame, BounceTime now);
  void on_data(BouncePeer from, const BounceFrame& frame, BounceTime now);
  void on_cancel(BouncePeer from, const BounceFrame& frame, BounceTime now);
  std::optional<BounceRefusal> check_want(const Inbound& inbound, const BounceFrame& want,
                                          std::vector<PackedGroup>* out) const;
  void nack(BouncePeer peer, BounceRequest request, std::uint64_t ticket, BounceRefusal refusal);
  void grant_chunks(BounceTime now);
  std::vector<RequestKey> requests_of(const TicketKey& ticket) const;
  // The request is not served any more: what runs ends, what may be written is set aside.
  void close_request(const RequestKey& key, BounceRefusal refusal);
  void refuse_if_quiet(const RequestKey& key);
  void forget_if_over(const RequestKey& key);
  void free_grant(BounceGrant id);
  void set_aside(Grant* grant);
  // Refuses what can never be granted beside the regions that are lost.
  void refuse_starved();
  bool hears(BouncePeer peer) const { return peers_.contains(peer) || parting_.contains(peer); }
  void end_inbound_if_quiet(const TicketKey& key);

  CreditScheduler* arena_;
  BounceTimeouts timeouts_;
  std::unordered_set<BouncePeer> peers_;
  std::unordered_set<BouncePeer> parting_;  // removed, with regions that they may still write
  std::map<TicketKey, Inbound> inbound_;
  std::map<RequestKey, Request> requests_;
  std::map<BounceGrant, Grant> grants_;
  std::unordered_map<ItemId, RequestKey> items_;
  std::vector<Parked> parked_;
  FlowId last_flow_ = 0;
  ItemId last_item_ = 0;
  BounceGrant last_grant_ = 0;
  std::vector<BounceReaderAction> actions_;
  BounceReaderCounters counters_;
};

}  // namespace kvt
