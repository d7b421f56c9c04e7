#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "core/unique_fd.h"
#include "device/cuda_context.h"
#include "device/pool_handle.h"

namespace kvt {

// How the memory of an owned pool is made: exportable by descriptor where the driver allows it, or as a plain
// allocation, which other libraries of this process (UCX) can share too.
enum class PoolMaking : std::uint8_t { kDescriptor, kPlain };

// Role: device memory that peers may be given.
// Ownership: an owned pool frees its memory with the object; a registered one names memory that the engine owns and
//   keeps alive, and frees nothing.
// Threading: created and destroyed by one thread; immutable between.
class DevicePool {
 public:
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // Zeroed. Memory that can be exported by descriptor where the driver allows it, else a plain allocation with an IPC
  // handle, else one that stays in this process; notice() says which and why.
  // kResource when the device has not that much memory free.
  static Status allocate(std::shared_ptr<const CudaContext> context, std::size_t size, std::unique_ptr<DevicePool>* out,
                         PoolMaking making = PoolMaking::kDescriptor);

  // [address, address + size) must lie inside one allocation of this device; any offset. kInvalidArgument names the
  // allocation otherwise.
  static Status adopt(std::shared_ptr<const CudaContext> context, std::uintptr_t address, std::size_t size,
                      std::unique_ptr<DevicePool>* out);

  const std::shared_ptr<const CudaContext>& context() const { return context_; }
  std::uintptr_t base() const { return base_; }
  std::size_t size() const { return size_; }
  const PoolHandle& handle() const { return handle_; }
  // Why the pool cannot be shared as well as it might; empty when it can.
  const std::string& notice() const { return notice_; }

 private:
  enum class Kind : std::uint8_t { kMapped, kPlain, kBorrowed };

  explicit DevicePool(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}
  Status out_of_memory(std::size_t size, const Status& cause) const;
  Status allocate_mapped(std::size_t size);
  Status allocate_plain(std::size_t size);
  Status zero();
  void export_ipc(cuda::DevicePointer allocation);

  std::shared_ptr<const CudaContext> context_;
  Kind kind_ = Kind::kBorrowed;
  std::uintptr_t base_ = 0;
  std::size_t size_ = 0;
  std::size_t mapped_size_ = 0;  // kMapped: rounded up
  std::uintptr_t reserved_ = 0;  // kMapped: address range, mapped or not
  cuda::AllocationHandle allocation_ = 0;
  bool is_mapped_ = false;
  UniqueFd descriptor_;
  PoolHandle handle_;
  std::string notice_;
};

}  // namespace kvt
