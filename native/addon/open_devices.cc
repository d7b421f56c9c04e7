#include "addon/open_devices.h"

#include <utility>

namespace kvt {

std::shared_ptr<const CudaContext> OpenDevices::find(int ordinal) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = contexts_.find(ordinal);
  return entry == contexts_.end() ? nullptr : entry->second;
}

Status OpenDevices::get(int ordinal, std::shared_ptr<const CudaContext>* out) {
  const std::lock_guard<std::mutex> opening(opening_mutex_);
  *out = find(ordinal);
  if (*out != nullptr) return Status::ok();
  Status status = CudaContext::retain(ordinal, out);
  if (!status.is_ok()) return status;
  const std::lock_guard<std::mutex> lock(mutex_);
  contexts_.emplace(ordinal, *out);
  return status;
}

Status OpenDevices::kernels(int ordinal, std::shared_ptr<const PageKernels>* out) {
  std::shared_ptr<const CudaContext> context;
  Status status = get(ordinal, &context);
  if (!status.is_ok()) return status;
  const std::lock_guard<std::mutex> opening(opening_mutex_);
  if (const auto known = kernels_.find(ordinal); known != kernels_.end()) {
    *out = known->second;
    return status;
  }
  std::unique_ptr<PageKernels> loaded;
  status = PageKernels::load(std::move(context), &loaded);
  if (!status.is_ok()) return status;
  *out = std::shared_ptr<const PageKernels>(std::move(loaded));
  kernels_.emplace(ordinal, *out);
  return status;
}

}  // namespace kvt
