#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run.h"
#include "core/status.h"
#include "device/cuda_context.h"
#include "transport/nixl_agent.h"
#include "transport/nixl_options.h"
#include "transport/region_table.h"

namespace kvt {

// Role: the shortest loop there can be over NIXL: descriptors, a request, post, ask until it is done. What the nixl
// agent
//   is measured against.
// Threading: one call at a time, each on a thread that may spin until its bytes have arrived. Not for the JS thread.
// Ownership: owns its own NIXL agent; borrows the source until close().
class NixlLoop {
 public:
  // `peer` is what the receiving agent published. Once. `context` is null for host memory.
  Status open(const NixlOptions& options, const Region& source, std::span<const std::byte> peer,
              std::shared_ptr<const CudaContext> context);
  // Moves `runs` in one request, from the first descriptor to the last byte.
  Status time(std::span<const Run> runs, std::int64_t* nanoseconds);
  // False: something may still read the source, for ever.
  bool close();

 private:
  Status load_peer(std::span<const std::byte> peer);

  std::optional<nixl::NixlAgent> agent_;
  std::shared_ptr<const CudaContext> context_;
  Region source_;
  bool is_registered_ = false;
  bool is_stuck_ = false;
  RegionTable remote_;
  std::string remote_name_;
};

}  // namespace kvt
