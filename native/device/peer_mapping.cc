#include "device/peer_mapping.h"

#include <cstring>
#include <string>

namespace kvt {
namespace {

Status check_extent(const PoolHandle& handle) {
  if (handle.size == 0 || handle.offset > handle.allocation_size ||
      handle.size > handle.allocation_size - handle.offset) {
    return Status(StatusCode::kTransport, "the peer's pool leaves its own allocation: " + std::to_string(handle.size) +
                                              " bytes at " + std::to_string(handle.offset) + " of " +
                                              std::to_string(handle.allocation_size));
  }
  return Status::ok();
}

}  // namespace

Status find_device(const CudaApi& api, const cuda::Uuid& uuid, int* ordinal) {
  int count = 0;
  Status status = api.check(api.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.is_ok()) return status;
  for (int i = 0; i < count; ++i) {
    cuda::Device device = 0;
    cuda::Uuid found{};
    if (api.cuDeviceGet(&device, i) != cuda::kSuccess || api.cuDeviceGetUuid(&found, device) != cuda::kSuccess)
      continue;
    if (std::memcmp(found.bytes, uuid.bytes, sizeof uuid.bytes) != 0) continue;
    *ordinal = i;
    return Status::ok();
  }
  return Status(StatusCode::kCapability,
                "the peer's GPU is not visible to this process; add it to CUDA_VISIBLE_DEVICES (behind the own ones)");
}

Status check_peer_access(const CudaContext& from, const cuda::Uuid& to) {
  const CudaApi& api = from.api();
  if (std::memcmp(from.uuid().bytes, to.bytes, sizeof to.bytes) == 0) return Status::ok();
  int ordinal = 0;
  Status status = find_device(api, to, &ordinal);
  if (!status.is_ok()) return status;
  cuda::Device device = 0;
  int can = 0;
  status = api.check(api.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  if (!status.is_ok()) return status;
  status = api.check(api.cuDeviceCanAccessPeer(&can, from.device(), device), "cuDeviceCanAccessPeer");
  if (!status.is_ok() || can != 0) return status;
  return Status(StatusCode::kCapability, "GPU " + std::to_string(from.ordinal()) + " has no peer access to GPU " +
                                             std::to_string(ordinal) + "; see nvidia-smi topo -p2p w");
}

GpuLink link_between(const CudaApi& api, cuda::Device from, cuda::Device to) {
  // Kernels have atomics of the peer's memory over NVLink, and over PCIe none.
  int has_atomics = 0;
  const cuda::Result result = api.cuDeviceGetP2PAttribute(&has_atomics, cuda::kPeerNativeAtomicSupported, from, to);
  if (result != cuda::kSuccess) return GpuLink::kUnknown;
  return has_atomics != 0 ? GpuLink::kNvlink : GpuLink::kPcie;
}

GpuLink link_to(const CudaContext& from, const cuda::Uuid& to) {
  if (std::memcmp(from.uuid().bytes, to.bytes, sizeof to.bytes) == 0) return GpuLink::kSameGpu;
  const CudaApi& api = from.api();
  int ordinal = 0;
  cuda::Device device = 0;
  const bool is_found = find_device(api, to, &ordinal).is_ok() && api.cuDeviceGet(&device, ordinal) == cuda::kSuccess;
  return is_found ? link_between(api, from.device(), device) : GpuLink::kUnknown;
}

Status PeerMapping::open_own(std::shared_ptr<const CudaContext> context, std::uintptr_t address,
                             const PoolHandle& handle, std::unique_ptr<PeerMapping>* out) {
  Status status = check_peer_access(*context, handle.device);
  if (!status.is_ok()) return status;
  std::unique_ptr<PeerMapping> made(new PeerMapping(std::move(context)));
  const CudaApi& api = made->context_->api();
  int ordinal = 0;
  status = find_device(api, handle.device, &ordinal);
  if (status.is_ok()) status = CudaContext::retain(ordinal, &made->owner_);
  if (!status.is_ok()) return status;
  if (ordinal != made->context_->ordinal()) {
    const CurrentContext current(*made->context_);
    if (!current.status().is_ok()) return current.status();
    const cuda::Result result = api.cuCtxEnablePeerAccess(made->owner_->handle(), 0);
    if (result != cuda::kErrorPeerAccessAlreadyEnabled) status = api.check(result, "cuCtxEnablePeerAccess");
    if (!status.is_ok()) return status;
  }
  made->base_ = address;
  made->size_ = handle.size;
  *out = std::move(made);
  return Status::ok();
}

Status PeerMapping::open(std::shared_ptr<const CudaContext> context, const PoolHandle& handle, UniqueFd descriptor,
                         std::unique_ptr<PeerMapping>* out) {
  Status status = check_extent(handle);
  if (!status.is_ok()) return status;
  status = check_peer_access(*context, handle.device);
  if (!status.is_ok()) return status;
  std::unique_ptr<PeerMapping> made(new PeerMapping(std::move(context)));
  const CurrentContext current(*made->context_);
  if (!current.status().is_ok()) return current.status();
  switch (handle.sharing) {
    case PoolSharing::kDescriptor:
      status = made->open_descriptor(handle, descriptor.get());
      break;
    case PoolSharing::kIpc:
      status = made->open_ipc(handle);
      break;
    case PoolSharing::kNone:
      status = Status(StatusCode::kCapability, "the peer's pool cannot be shared between processes");
      break;
  }
  if (!status.is_ok()) return status;
  made->size_ = handle.size;
  *out = std::move(made);
  return Status::ok();
}

Status PeerMapping::open_descriptor(const PoolHandle& handle, int descriptor) {
  const CudaApi& api = context_->api();
  if (descriptor < 0) return Status(StatusCode::kTransport, "the peer named a descriptor and sent none");
  Status status = api.check(
      api.cuMemImportFromShareableHandle(
          // The driver takes the number itself where it expects a pointer.
          &allocation_, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), cuda::kHandlePosixFd),
      "cuMemImportFromShareableHandle");
  if (!status.is_ok()) return status;
  reserved_size_ = handle.allocation_size;
  status = api.check(api.cuMemAddressReserve(&reserved_, reserved_size_, 0, 0, 0), "cuMemAddressReserve");
  if (!status.is_ok()) return status;
  // Fails when the peer claimed more than the allocation holds.
  status = api.check(api.cuMemMap(reserved_, reserved_size_, 0, allocation_, 0), "cuMemMap");
  if (!status.is_ok()) return status;
  is_mapped_ = true;
  const cuda::AccessDescription access{{cuda::kLocationDevice, context_->device()}, cuda::kAccessReadWrite};
  status = api.check(api.cuMemSetAccess(reserved_, reserved_size_, &access, 1), "cuMemSetAccess");
  if (!status.is_ok()) return status;
  base_ = reserved_ + handle.offset;
  return Status::ok();
}

Status PeerMapping::open_ipc(const PoolHandle& handle) {
  const CudaApi& api = context_->api();
  Status status =
      api.check(api.cuIpcOpenMemHandle(&ipc_, handle.ipc, cuda::kIpcLazyEnablePeerAccess), "cuIpcOpenMemHandle");
  if (!status.is_ok()) return status;
  cuda::DevicePointer base = 0;
  std::size_t size = 0;
  status = api.check(api.cuMemGetAddressRange(&base, &size, ipc_), "cuMemGetAddressRange");
  if (!status.is_ok()) return status;
  if (handle.offset + handle.size > size) {
    return Status(StatusCode::kTransport, "the peer's pool is larger than the allocation that its handle opens: " +
                                              std::to_string(handle.offset + handle.size) + " bytes of " +
                                              std::to_string(size));
  }
  base_ = ipc_ + handle.offset;
  return Status::ok();
}

PeerMapping::~PeerMapping() {
  const CudaApi& api = context_->api();
  const CurrentContext current(*context_);
  if (ipc_ != 0) (void)api.cuIpcCloseMemHandle(ipc_);
  if (is_mapped_) (void)api.cuMemUnmap(reserved_, reserved_size_);
  if (reserved_ != 0) (void)api.cuMemAddressFree(reserved_, reserved_size_);
  if (allocation_ != 0) (void)api.cuMemRelease(allocation_);
}

}  // namespace kvt
