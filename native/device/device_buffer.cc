#include "device/device_buffer.h"

namespace kvt {

Status DeviceBuffer::create(std::shared_ptr<const CudaContext> context, std::size_t size, DeviceBuffer* out) {
  const CudaApi& api = context->api();
  const CurrentContext current(*context);
  if (!current.status().is_ok()) return current.status();
  DeviceBuffer made;
  made.context_ = std::move(context);
  made.size_ = size;
  Status status = api.check(api.cuMemAlloc(&made.device_, size), "cuMemAlloc");
  if (!status.is_ok()) return status;
  void* host = nullptr;
  status = api.check(api.cuMemHostAlloc(&host, size, cuda::kHostAllocPortable), "cuMemHostAlloc");
  if (!status.is_ok()) return status;
  made.host_ = static_cast<std::byte*>(host);
  *out = std::move(made);
  return Status::ok();
}

DeviceBuffer::~DeviceBuffer() {
  if (context_ == nullptr) return;
  const CurrentContext current(*context_);
  if (device_ != 0) (void)context_->api().cuMemFree(device_);
  if (host_ != nullptr) (void)context_->api().cuMemFreeHost(host_);
}

Status DeviceBuffer::upload(std::size_t bytes, const CudaStream& stream) const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  return context_->api().check(context_->api().cuMemcpyHtoDAsync(device_, host_, bytes, stream.handle()),
                               "cuMemcpyHtoDAsync");
}

Status DeviceBuffer::download(std::size_t bytes, const CudaStream& stream) const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  return context_->api().check(context_->api().cuMemcpyDtoHAsync(host_, device_, bytes, stream.handle()),
                               "cuMemcpyDtoHAsync");
}

}  // namespace kvt
