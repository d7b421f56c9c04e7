#include "device/device_pool.h"

#include <utility>

namespace kvt {
namespace {

cuda::AllocationProperties shareable_on(const CudaContext& context) {
  cuda::AllocationProperties properties{};
  properties.type = cuda::kAllocationPinned;
  properties.requested_handle_types = cuda::kHandlePosixFd;
  properties.location = {cuda::kLocationDevice, context.device()};
  properties.flags.gpu_direct_rdma_capable =
      context.attribute(cuda::kAttributeGpuDirectRdmaWithMappingSupported) != 0 ? 1 : 0;
  return properties;
}

}  // namespace

Status DevicePool::allocate(std::shared_ptr<const CudaContext> context, std::size_t size,
                            std::unique_ptr<DevicePool>* out, PoolMaking making) {
  if (size == 0) return Status(StatusCode::kInvalidArgument, "a pool needs at least one byte");
  std::unique_ptr<DevicePool> pool(new DevicePool(std::move(context)));
  const CurrentContext current(*pool->context_);
  if (!current.status().is_ok()) return current.status();
  if (making == PoolMaking::kPlain) {
    Status status = pool->allocate_plain(size);
    if (!status.is_ok()) return status;
    if (pool->handle_.sharing == PoolSharing::kNone) pool->notice_ = "cannot be shared: " + pool->notice_;
    status = pool->zero();
    if (status.is_ok()) *out = std::move(pool);
    return status;
  }
  std::string why_plain;
  if (pool->context_->attribute(cuda::kAttributeHandleTypePosixFdSupported) == 0) {
    why_plain = "the driver does not export device memory by descriptor";
  } else {
    Status status = pool->allocate_mapped(size);
    if (status.code() == StatusCode::kResource) return status;
    if (!status.is_ok()) {
      why_plain = status.message();
      std::unique_ptr<DevicePool> fresh(new DevicePool(pool->context_));
      std::swap(pool, fresh);
    }
  }
  if (!why_plain.empty()) {
    Status status = pool->allocate_plain(size);
    if (!status.is_ok()) return status;
    pool->notice_ = pool->handle_.sharing == PoolSharing::kIpc
                        ? "shared by IPC handle: " + why_plain
                        : "cannot be shared: " + why_plain + "; " + pool->notice_;
  }
  if (Status status = pool->zero(); !status.is_ok()) return status;
  *out = std::move(pool);
  return Status::ok();
}

Status DevicePool::out_of_memory(std::size_t size, const Status& cause) const {
  std::size_t free = 0;
  std::size_t total = 0;
  (void)context_->api().cuMemGetInfo(&free, &total);
  return Status(StatusCode::kResource, "a pool of " + std::to_string(size) + " bytes does not fit on GPU " +
                                           std::to_string(context_->ordinal()) + ", which has " + std::to_string(free) +
                                           " of " + std::to_string(total) + " free: " + cause.message());
}

Status DevicePool::allocate_mapped(std::size_t size) {
  const CudaApi& api = context_->api();
  const cuda::AllocationProperties properties = shareable_on(*context_);
  std::size_t granularity = 0;
  Status status = api.check(api.cuMemGetAllocationGranularity(&granularity, &properties, cuda::kGranularityRecommended),
                            "cuMemGetAllocationGranularity");
  if (!status.is_ok()) return status;
  if (size > context_->memory_bytes()) {
    return Status(StatusCode::kResource, "a pool of " + std::to_string(size) + " bytes is larger than GPU " +
                                             std::to_string(context_->ordinal()) + " with its " +
                                             std::to_string(context_->memory_bytes()));
  }
  kind_ = Kind::kMapped;
  size_ = size;
  mapped_size_ = (size + granularity - 1) / granularity * granularity;
  status = api.check(api.cuMemCreate(&allocation_, mapped_size_, &properties, 0), "cuMemCreate");
  if (status.code() == StatusCode::kResource) return out_of_memory(size, status);
  if (!status.is_ok()) return status;
  status = api.check(api.cuMemAddressReserve(&reserved_, mapped_size_, granularity, 0, 0), "cuMemAddressReserve");
  if (!status.is_ok()) return status;
  status = api.check(api.cuMemMap(reserved_, mapped_size_, 0, allocation_, 0), "cuMemMap");
  if (!status.is_ok()) return status;
  is_mapped_ = true;
  const cuda::AccessDescription access{properties.location, cuda::kAccessReadWrite};
  status = api.check(api.cuMemSetAccess(reserved_, mapped_size_, &access, 1), "cuMemSetAccess");
  if (!status.is_ok()) return status;
  int descriptor = -1;
  status = api.check(api.cuMemExportToShareableHandle(&descriptor, allocation_, cuda::kHandlePosixFd, 0),
                     "cuMemExportToShareableHandle");
  if (!status.is_ok()) return status;
  descriptor_.reset(descriptor);
  base_ = reserved_;
  handle_ = {.sharing = PoolSharing::kDescriptor,
             .descriptor = descriptor,
             .allocation_size = mapped_size_,
             .offset = 0,
             .size = size,
             .device = context_->uuid()};
  return Status::ok();
}

Status DevicePool::allocate_plain(std::size_t size) {
  const CudaApi& api = context_->api();
  cuda::DevicePointer pointer = 0;
  Status status = api.check(api.cuMemAlloc(&pointer, size), "cuMemAlloc");
  if (status.code() == StatusCode::kResource) return out_of_memory(size, status);
  if (!status.is_ok()) return status;
  kind_ = Kind::kPlain;
  base_ = pointer;
  size_ = size;
  handle_ = {.allocation_size = size, .offset = 0, .size = size, .device = context_->uuid()};
  export_ipc(pointer);
  return Status::ok();
}

Status DevicePool::adopt(std::shared_ptr<const CudaContext> context, std::uintptr_t address, std::size_t size,
                         std::unique_ptr<DevicePool>* out) {
  const CudaApi& api = context->api();
  std::unique_ptr<DevicePool> pool(new DevicePool(std::move(context)));
  const CurrentContext current(*pool->context_);
  if (!current.status().is_ok()) return current.status();
  const auto refuse = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (size == 0) return refuse("a pool needs at least one byte");
  unsigned type = 0;
  int owner = -1;
  if (api.cuPointerGetAttribute(&type, cuda::kPointerMemoryType, address) != cuda::kSuccess ||
      type != cuda::kMemoryTypeDevice ||
      api.cuPointerGetAttribute(&owner, cuda::kPointerDeviceOrdinal, address) != cuda::kSuccess) {
    return refuse("the address is no device memory that this process allocated");
  }
  if (owner != pool->context_->ordinal()) {
    return refuse("the address belongs to GPU " + std::to_string(owner) + ", not to GPU " +
                  std::to_string(pool->context_->ordinal()));
  }
  cuda::DevicePointer allocation = 0;
  std::size_t allocation_size = 0;
  Status status = api.check(api.cuMemGetAddressRange(&allocation, &allocation_size, address), "cuMemGetAddressRange");
  if (!status.is_ok()) return status;
  const std::size_t offset = address - allocation;
  if (size > allocation_size - offset) {
    return refuse("the pool leaves its allocation: it takes bytes " + std::to_string(offset) + " to " +
                  std::to_string(offset + size) + " of " + std::to_string(allocation_size));
  }
  pool->base_ = address;
  pool->size_ = size;
  pool->handle_ = {
      .allocation_size = allocation_size, .offset = offset, .size = size, .device = pool->context_->uuid()};
  pool->export_ipc(allocation);
  if (pool->handle_.sharing == PoolSharing::kNone) pool->notice_ = "cannot be shared: " + pool->notice_;
  *out = std::move(pool);
  return Status::ok();
}

void DevicePool::export_ipc(cuda::DevicePointer allocation) {
  const CudaApi& api = context_->api();
  Status status = api.check(api.cuIpcGetMemHandle(&handle_.ipc, allocation), "cuIpcGetMemHandle");
  if (status.is_ok()) {
    handle_.sharing = PoolSharing::kIpc;
  } else {
    // Memory of a virtual memory or stream-ordered allocator has no such handle, and some containers forbid it.
    notice_ = status.message();
  }
}

Status DevicePool::zero() {
  const CudaApi& api = context_->api();
  Status status = api.check(api.cuMemsetD8Async(base_, 0, size_, nullptr), "cuMemsetD8Async");
  if (!status.is_ok()) return status;
  return api.check(api.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

DevicePool::~DevicePool() {
  const CudaApi& api = context_->api();
  const CurrentContext current(*context_);
  if (kind_ == Kind::kPlain && base_ != 0) (void)api.cuMemFree(base_);
  if (kind_ != Kind::kMapped) return;
  if (is_mapped_) (void)api.cuMemUnmap(reserved_, mapped_size_);
  if (reserved_ != 0) (void)api.cuMemAddressFree(reserved_, mapped_size_);
  if (allocation_ != 0) (void)api.cuMemRelease(allocation_);
}

}  // namespace kvt
