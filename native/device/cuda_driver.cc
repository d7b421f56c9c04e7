#include "device/cuda_driver.h"

#include <dlfcn.h>

namespace kvt {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string describe(void* library, const char* call, int code) {
  using GetErrorString = int(int, const char**);
  const char* text = nullptr;
  if (auto* get_error_string = symbol<GetErrorString>(library, "cuGetErrorString")) (void)get_error_string(code, &text);
  return std::string(call) + ": " + (text == nullptr ? "error " + std::to_string(code) : std::string(text));
}

}  // namespace

CudaProbe probe_cuda() {
  CudaProbe probe;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    probe.reason = std::string(why == nullptr ? "libcuda.so.1 cannot be opened" : why) +
                   "; install the NVIDIA driver to use device memory";
    return probe;
  }
  probe.library = kLibrary;
  auto* init = symbol<int(unsigned)>(library, "cuInit");
  auto* driver_version = symbol<int(int*)>(library, "cuDriverGetVersion");
  auto* device_count = symbol<int(int*)>(library, "cuDeviceGetCount");
  if (init == nullptr || driver_version == nullptr || device_count == nullptr) {
    probe.reason = "libcuda.so.1 lacks cuInit, cuDriverGetVersion or cuDeviceGetCount; update the NVIDIA driver";
    return probe;
  }
  (void)driver_version(&probe.driver_version);
  if (const int code = init(0); code != 0) {
    probe.reason = describe(library, "cuInit", code) + "; check the GPU and its driver with nvidia-smi";
    return probe;
  }
  if (const int code = device_count(&probe.device_count); code != 0) {
    probe.reason = describe(library, "cuDeviceGetCount", code);
    return probe;
  }
  if (probe.device_count == 0) {
    probe.reason = "the driver sees no GPU; check CUDA_VISIBLE_DEVICES and the container's devices";
    return probe;
  }
  probe.is_available = true;
  return probe;
}

}  // namespace kvt
