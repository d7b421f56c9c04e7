#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "core/bounce_gauges.h"
#include "core/bounce_plan.h"
#include "core/status.h"
#include "transport/bounce_metadata.h"
#include "transport/transport.h"

namespace kvt {

struct BounceOptions {
  // One arena for both roles. It must hold two of the largest chunk, rounded up to a power of two.
  std::size_t arena_bytes = 0;
  std::size_t max_chunk_bytes = std::size_t{32} << 20;
  // A slice is bounced from so many descriptors on ...
  std::size_t min_descriptor_count = 1024;
  // ... of at most this many bytes on average.
  std::size_t max_average_descriptor_bytes = std::size_t{16} << 10;
  std::size_t max_inflight_chunks = 8;
  std::chrono::milliseconds request_timeout{30000};
  // Bounds the multiprocessors a gather or scatter takes.
  unsigned gather_blocks = 16;
  // Whether the thresholds were set, and decide over memory of a GPU too.
  bool has_thresholds = false;
  // Every slice that can be bounced is: whoever is above decides, or a test.
  bool is_forced = false;
  // How frames travel. kMessages needs a transport that carries messages.
  BounceLinkKind link = BounceLinkKind::kSocket;
  // A connection of the link that closed proves that its writer writes no more. So it is where the writer's own thread
  // copies; not where a card or a GPU goes on without it.
  bool link_end_proves_end = false;
  // GPU of the arena when the transport below does not allocate there itself; -1: its own memory.
  int arena_device = -1;
  // Kept up to date from open() on; null: nobody looks.
  std::shared_ptr<BounceGauges> gauges = nullptr;
};

inline BounceThresholds thresholds_of(const BounceOptions& options) {
  const BounceRule set = options.has_thresholds ? BounceRule::kThresholds : BounceRule::kCost;
  return {options.min_descriptor_count, options.max_average_descriptor_bytes,
          options.is_forced ? BounceRule::kAlways : set};
}

// Role: puts the bounce path next to whatever `base` does: slices under a ticket that are many small pieces go through
//   both sides' arenas, the rest as ever.
// Null with `error` set when the options are wrong.
std::unique_ptr<Transport> make_bounce_transport(std::unique_ptr<Transport> base, const BounceOptions& options,
                                                 Status* error);

}  // namespace kvt
