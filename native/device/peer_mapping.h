#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/path_cost.h"
#include "core/status.h"
#include "core/unique_fd.h"
#include "device/cuda_context.h"
#include "device/pool_handle.h"

namespace kvt {

// Role: a peer's pool, mapped into this process so that our kernels and copies write straight into it.
// Ownership: owns the mapping, not the memory: the memory lives at least as long as the mapping, whatever becomes of
// the
//   peer.
// Threading: the progress thread. Nothing of ours may run on the mapping when it is destroyed.
class PeerMapping {
 public:
  ~PeerMapping();
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;

  // `handle` is untrusted; `descriptor` is the one received for kDescriptor and is consumed.
  // kCapability: this GPU cannot reach that one, or the driver refuses the handle.
  static Status open(std::shared_ptr<const CudaContext> context, const PoolHandle& handle, UniqueFd descriptor,
                     std::unique_ptr<PeerMapping>* out);

  // A pool of this very process, by its own address: handles for other processes do not open here.
  static Status open_own(std::shared_ptr<const CudaContext> context, std::uintptr_t address, const PoolHandle& handle,
                         std::unique_ptr<PeerMapping>* out);

  // Where the pool's first byte is mapped here.
  std::uintptr_t base() const { return base_; }
  std::size_t size() const { return size_; }

 private:
  explicit PeerMapping(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}
  Status open_descriptor(const PoolHandle& handle, int descriptor);
  Status open_ipc(const PoolHandle& handle);

  std::shared_ptr<const CudaContext> context_;
  std::shared_ptr<const CudaContext> owner_;  // open_own: the pool's device, whose memory is reached directly
  std::uintptr_t base_ = 0;
  std::size_t size_ = 0;
  std::uintptr_t ipc_ = 0;
  std::uintptr_t reserved_ = 0;
  std::size_t reserved_size_ = 0;
  cuda::AllocationHandle allocation_ = 0;
  bool is_mapped_ = false;
};

// Whether kernels of `from` can write into memory of the device named by `to`, which must be visible to this process.
// A device that is not visible is kCapability too: the driver then maps nothing of it.
Status check_peer_access(const CudaContext& from, const cuda::Uuid& to);

// What joins `from` to the GPU named by `to`; kUnknown where the driver does not say.
GpuLink link_to(const CudaContext& from, const cuda::Uuid& to);
// The same between two GPUs that have peer access.
GpuLink link_between(const CudaApi& api, cuda::Device from, cuda::Device to);

// The number by which this process knows a device; kCapability when it is not visible here.
Status find_device(const CudaApi& api, const cuda::Uuid& uuid, int* ordinal);

}  // namespace kvt
