#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "device/device_buffer.h"

namespace kvt {

// Role: small device buffers that come and go with slices, without asking the driver each time: freeing device memory
//   may wait for everything that runs.
// Ownership: owns what was given back; freed with the pool.
// Threading: one thread.
class DeviceBufferPool {
 public:
  explicit DeviceBufferPool(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}

  // Sizes are rounded up to a power of two.
  Status take(std::size_t bytes, DeviceBuffer* out) {
    const std::size_t size = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
    std::vector<DeviceBuffer>& free = free_[class_of(size)];
    if (free.empty()) return DeviceBuffer::create(context_, size, out);
    *out = std::move(free.back());
    free.pop_back();
    return Status::ok();
  }

  // Nothing queued uses the buffer any more.
  void give_back(DeviceBuffer buffer) { free_[class_of(buffer.size())].push_back(std::move(buffer)); }

 private:
  static constexpr std::size_t kSmallest = 4096;
  static std::size_t class_of(std::size_t size) { return static_cast<std::size_t>(std::countr_zero(size)); }

  std::shared_ptr<const CudaContext> context_;
  std::array<std::vector<DeviceBuffer>, 64> free_;
};

}  // namespace kvt
