#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "core/status.h"
#include "device/device_pool.h"
#include "transport/region_table.h"

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

// Role: the writes that probe one peer with one kind of memory, one after the other.
struct Probe {
  static constexpr int kFewest = 3;
  static constexpr int kMost = 8;

  MemoryKind kind = MemoryKind::kHost;
  Region from;
  Region to;
  std::optional<BatchId> batch;  // in flight
  TimePoint posted_at;
  int count = 0;
  double best = 0;  // bytes a microsecond
  bool is_over = false;

  std::size_t bytes() const { return std::min(from.size, to.size); }
  // The first write connects; later ones are undisturbed at some time.
  void note(TimePoint now, double fast_enough);
};

}  // namespace kvt::nixl
