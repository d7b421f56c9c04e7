#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace kvt {

// Role: models one network link that everything shares: bytes leave one after the other at a fixed rate.
// Invariants: over a busy period the last byte leaves exactly when the rate says, whatever the batch sizes; idle time
// is
//   lost and never becomes a burst.
// Threading: none of its own; time is given, never read.
class LinkPacer {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `gigabits_per_second` must be finite, at least 0.001 and at most 1e6.
  static Status create(double gigabits_per_second, LinkPacer* out);

  // Queues `bytes` behind everything queued before and says when the last of them has left. `now` never runs backwards.
  TimePoint enqueue(TimePoint now, std::size_t bytes);

 private:
  std::uint64_t bits_per_second_ = 1;
  TimePoint busy_since_{};
  std::uint64_t busy_bytes_ = 0;  // queued since busy_since_
  TimePoint free_at_{};
};

}  // namespace kvt
