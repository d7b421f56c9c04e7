#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "transport/nixl_abi.h"
#include "transport/transport.h"

namespace kvt::nixl {

// Role: keeps what failed without proof that it stopped, until nothing of it can touch memory any more.
// Why: NIXL reports an error once and then never polls the operation again, and a post that fails may have started part
//   of its work, so that an errored request cannot be seen to end. What ends it is the end of its connection: every
//   request to the peer released (each one pins the endpoint), the peer invalidated, and a time for the endpoint's
//   asynchronous close.
// Ownership: of the requests it holds, until begin_grace gives them to `release`.
class Quarantine {
 public:
  using Release = std::function<void(XferReq)>;

  void hold(BatchId batch, PeerId peer, XferReq request);

  // The connection to `peer` is being torn down: releases the requests held for it and starts their grace time.
  void begin_grace(PeerId peer, TimePoint until, const Release& release);

  // Moves the batches whose grace time is over to `out`. Appends.
  void take_drained(TimePoint now, std::vector<BatchId>* out);

  // When the next batch drains by time; nullopt when none is in its grace time.
  std::optional<TimePoint> next_drain() const;

  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    BatchId batch = 0;
    PeerId peer = 0;
    // Null once the grace time has begun.
    XferReq request = nullptr;
    std::optional<TimePoint> drains_at;
  };
  std::vector<Entry> entries_;
};

}  // namespace kvt::nixl
