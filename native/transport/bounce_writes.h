#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "core/bounce_writer.h"
#include "transport/transport.h"

namespace kvt {

// Role: chunks on their way into peers' arenas, in pieces that the transport below takes.
// Ownership: borrows that transport. Its batches have ids above every id of the engine's.
// Ordering: chunks take turns; the pieces of one are posted in order.
class BounceWrites {
 public:
  explicit BounceWrites(Transport* base) : base_(base) {}

  // Once the transport below is open. Default: nothing is posted.
  void set_limits(const BatchLimits& limits) { limits_ = limits; }

  // may_still_land: collect_drained names the chunk later, unless has_drained says that it happened already.
  struct Ended {
    BounceChunk id;
    Status status;
    bool may_still_land = false;
    bool has_drained = false;
  };

  void add(BounceChunk id, PeerId peer, const Run& run);
  void poll(std::vector<Ended>* out);
  // Posts what there is room for; where the transport copies in post(), one piece. True: something was posted. Chunks
  // to peers that are not reachable end.
  bool post(const std::function<bool(PeerId)>& is_reachable, std::vector<Ended>* out);
  // `others`: batches that drained and are not ours.
  void collect_drained(std::vector<BounceChunk>* drained, std::vector<BatchId>* others);

  bool is_in_flight_to(PeerId peer) const { return in_flight_.contains(peer); }
  // Something waits that is not held up by a batch in flight, whose end the transport announces.
  bool can_post() const;

 private:
  struct Write {
    BounceChunk id;
    PeerId peer = 0;
    Run left;
    std::size_t in_flight = 0;
    bool may_still_land = false;
    std::size_t undrained = 0;
    Status error;
  };
  using Place = std::list<Write>::iterator;

  void note_failure(BatchId batch, Place write, BatchResult result);
  void settle(Place write, std::vector<Ended>* out);

  Transport* base_;
  BatchLimits limits_{.max_runs = 1, .max_bytes = 0, .max_in_flight = 0};
  std::list<Write> writes_;
  std::unordered_map<BatchId, Place> batches_;    // in flight
  std::unordered_map<BatchId, Place> undrained_;  // failed and may still land
  std::unordered_map<PeerId, std::size_t> in_flight_;
  BatchId last_batch_ = BatchId{1} << 63;
};

}  // namespace kvt
