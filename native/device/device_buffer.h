#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"

namespace kvt {

// Role: device memory of our own and, for small tables that change, a pinned copy on the host beside it.
// Ownership: owns both. Nothing queued may still use them when it is destroyed.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(device_, other.device_);
    std::swap(host_, other.host_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer();

  static Status create(std::shared_ptr<const CudaContext> context, std::size_t size, DeviceBuffer* out);

  std::uintptr_t device() const { return device_; }
  std::size_t size() const { return size_; }
  // The pinned side, for the CPU to write and upload() to send.
  std::span<std::byte> host() const { return {host_, size_}; }

  // Both are queued on the stream; the host side must not change until the stream has passed them.
  Status upload(std::size_t bytes, const CudaStream& stream) const;
  Status download(std::size_t bytes, const CudaStream& stream) const;

 private:
  std::shared_ptr<const CudaContext> context_;
  std::uintptr_t device_ = 0;
  std::byte* host_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvt
