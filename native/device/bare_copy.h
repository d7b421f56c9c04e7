#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/cuda_event.h"
#include "device/cuda_stream.h"
#include "device/device_pool.h"
#include "device/peer_mapping.h"

namespace kvt {

// Role: one copy command of the driver from one GPU's memory to another's (or to its own), and nothing around it: what
//   every path is measured against.
// Ownership: owns memory on both GPUs and a stream of the one that writes.
// Threading: one thread at a time; blocks.
class BareCopy {
 public:
  struct Times {
    // By the host's clock, from before the command is given until its end is seen, as a path's slices are timed.
    std::int64_t host_ns = 0;
    // By the GPU's clock: the copy alone.
    double device_us = 0;
  };

  // kCapability: this GPU cannot write that one's memory. kResource: one of them has not `size` bytes free.
  static Status open(std::shared_ptr<const CudaContext> from, std::shared_ptr<const CudaContext> to, std::size_t size,
                     std::unique_ptr<BareCopy>* out);

  // Copies the first `bytes`. kInvalidArgument: none, or more than there are.
  Status time(std::size_t bytes, Times* out) const;

  const DevicePool& source() const { return *source_; }
  const DevicePool& destination() const { return *destination_; }

 private:
  BareCopy() = default;

  std::unique_ptr<DevicePool> source_;
  std::unique_ptr<DevicePool> destination_;
  std::unique_ptr<PeerMapping> mapping_;  // before the memory that it reaches
  CudaStream stream_;
  CudaEvent begin_;
  CudaEvent end_;
};

}  // namespace kvt
