#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "device/device_pool.h"
#include "transport/nixl_speed.h"
#include "transport/transport.h"

namespace kvt::nixl {

// Role: one memory of each kind that an agent uses, which nobody keeps anything in: peers write into it, and it is
//   written from, to see how fast that is.
// Ownership: the memory; whoever registers it deregisters it before `free`.
class ProbeMemory {
 public:
  // What one write carries, and how large the memory is. Large enough that its time is the path's and not the
  // poster's, small enough that a slow path takes a millisecond.
  static constexpr std::size_t bytes_of(MemoryKind kind) {
    return kind == MemoryKind::kDevice ? std::size_t{2} << 20 : std::size_t{512} << 10;
  }

  // `device`: of kDevice. Not there before.
  Status allocate(MemoryKind kind, int device, Region* out);
  void free(MemoryKind kind);
  // Nothing of it is ever freed.
  void abandon();

  const Region* find(MemoryKind kind) const {
    const std::optional<Region>& region = regions_[static_cast<std::size_t>(kind)];
    return region ? &*region : nullptr;
  }
  std::vector<Region> all() const;

  // Bytes a microsecond that this thread copies within the host memory.
  double copy_rate() const;

 private:
  std::array<std::optional<Region>, 2> regions_;  // by MemoryKind
  std::size_t mapped_size_ = 0;
  std::unique_ptr<DevicePool> pool_;
};

// Role: times writes into the probe memory of peers that were just added, one after the other, and tells what it found.
// Ownership: borrows the transport, through which it writes.
class PeerProbes {
 public:
  explicit PeerProbes(Transport* transport) : transport_(transport) {}

  // Probes have ids above those of the engine and of the bounce path.
  static bool is_probe(BatchId batch) { return batch >= kFirst; }

  // With every kind of memory that both sides have for it.
  void plan(PeerId peer, const ProbeMemory& from, const std::vector<Region>& to);
  // Goes on; true once it is over, by the time at the latest.
  bool run(PeerId peer, SpeedWatch* speed);
  // What of it is in flight still ends.
  void drop(PeerId peer);
  void poll_dropped();
  bool is_idle() const;

 private:
  static constexpr BatchId kFirst = BatchId{3} << 62;

  struct Probe {
    MemoryKind kind = MemoryKind::kHost;
    Run run;
    std::optional<BatchId> batch;  // in flight
    TimePoint posted_at;
    int count = 0;
    double best = 0;  // bytes a microsecond
  };
  struct Peer {
    std::deque<Probe> left;
    TimePoint ends_at;
  };

  // Null while it is in flight.
  std::optional<BatchResult> step(PeerId peer, Probe* probe);

  Transport* transport_;
  std::unordered_map<PeerId, Peer> peers_;
  std::vector<BatchId> dropped_;
  BatchId last_ = kFirst;
};

}  // namespace kvt::nixl
