#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/region_set.h"
#include "core/run.h"
#include "transport/handover_client.h"
#include "transport/host_metadata.h"
#include "transport/shared_mapping.h"
#include "transport/transport.h"

namespace kvt {

// Role: one peer's memory, mapped here, and the connection that tells when the peer is gone.
// Threading: the progress thread; no call blocks.
// Ownership: owns connection and mappings. Mappings stay until the peer is removed, also when it failed: addresses
//   handed out before remain valid.
class HostPeer {
 public:
  // Registers its socket with `epoll` under `event`.
  HostPeer(HostMetadata metadata, int epoll, std::uint64_t event, TimePoint deadline);

  // Drives the hand-over, and notices the end of the connection.
  void advance(TimePoint now);
  PeerState state() const { return client_.state(); }
  // Why it failed; ok while it has not.
  const Status& error() const { return client_.error(); }
  // When to call advance although no event came.
  std::optional<TimePoint> next_wakeup(TimePoint now) const { return client_.next_wakeup(now); }

  // A ready peer whose process ended or whose agent closed fails with kPeerLost from here on.
  bool check_alive() { return client_.check_alive(); }

  // Where the peer's bytes [address, address + size) are mapped here; 0 when the peer did not publish them.
  std::uintptr_t translate(std::uintptr_t address, std::size_t size) const;
  const RegionSet& regions() const { return regions_; }

 private:
  HandoverClient client_;
  RegionSet regions_;
  std::vector<SharedMapping> mappings_;  // by index in regions_
  mutable std::size_t last_region_ = 0;
};

}  // namespace kvt
