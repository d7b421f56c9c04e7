#include "device/cuda_context.h"

#include <array>

namespace kvt {

Status CudaContext::retain(int ordinal, std::shared_ptr<const CudaContext>* out) {
  const CudaApi* api = nullptr;
  Status status = load_cuda(&api);
  if (!status.is_ok()) return status;
  int count = 0;
  status = api->check(api->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.is_ok()) return status;
  if (ordinal < 0 || ordinal >= count) {
    return Status(StatusCode::kInvalidArgument, "there is no GPU " + std::to_string(ordinal) + ": the driver sees " +
                                                    std::to_string(count) +
                                                    "; check the device id and CUDA_VISIBLE_DEVICES");
  }
  std::shared_ptr<CudaContext> made(new CudaContext);
  made->api_ = api;
  made->ordinal_ = ordinal;
  status = api->check(api->cuDeviceGet(&made->device_, ordinal), "cuDeviceGet");
  if (!status.is_ok()) return status;
  std::array<char, 128> name{};
  (void)api->cuDeviceGetName(name.data(), static_cast<int>(name.size()), made->device_);
  made->name_ = name.data();
  status = api->check(api->cuDeviceGetUuid(&made->uuid_, made->device_), "cuDeviceGetUuid");
  if (!status.is_ok()) return status;
  made->architecture_ = 10 * made->attribute(cuda::kAttributeComputeCapabilityMajor) +
                        made->attribute(cuda::kAttributeComputeCapabilityMinor);
  made->multiprocessor_count_ = made->attribute(cuda::kAttributeMultiprocessorCount);
  (void)api->cuDeviceTotalMem(&made->memory_bytes_, made->device_);
  cuda::Context context = nullptr;
  status = api->check(api->cuDevicePrimaryCtxRetain(&context, made->device_), "cuDevicePrimaryCtxRetain");
  if (!status.is_ok()) return status;
  made->context_ = context;
  *out = std::move(made);
  return Status::ok();
}

CudaContext::~CudaContext() {
  if (context_ != nullptr) (void)api_->cuDevicePrimaryCtxRelease(device_);
}

int CudaContext::attribute(int which) const {
  int value = 0;
  return api_->cuDeviceGetAttribute(&value, which, device_) == cuda::kSuccess ? value : 0;
}

}  // namespace kvt
