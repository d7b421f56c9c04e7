#include "device/cuda_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "device/cuda_withheld.h"

namespace kvt {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// cuGetProcAddress of CUDA 12 and of 11.3; only the newer one says why it failed.
using GetProcAddress2 = cuda::Result(const char*, void**, int, std::uint64_t, int*);
using GetProcAddress1 = cuda::Result(const char*, void**, int, std::uint64_t);

struct Loaded {
  CudaApi api;
  Status status;
};

Status unusable(const std::string& what, const char* remedy) {
  return Status(StatusCode::kCapability, what + "; " + remedy);
}

class SymbolSource {
 public:
  explicit SymbolSource(void* library)
      : newer_(reinterpret_cast<GetProcAddress2*>(::dlsym(library, "cuGetProcAddress_v2"))),
        older_(reinterpret_cast<GetProcAddress1*>(::dlsym(library, "cuGetProcAddress"))) {}

  bool is_usable() const { return newer_ != nullptr || older_ != nullptr; }

  void* find(const char* name, int version) const {
    void* address = nullptr;
    const cuda::Result result =
        newer_ != nullptr ? newer_(name, &address, version, 0, nullptr) : older_(name, &address, version, 0);
    return result == cuda::kSuccess ? address : nullptr;
  }

 private:
  GetProcAddress2* newer_;
  GetProcAddress1* older_;
};

Status fill(const SymbolSource& source, CudaApi* api) {
  std::string missing;
  const auto note = [&missing](const char* name, const void* address) {
    if (address == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
#define KVT_CUDA(name, version, parameters)                                       \
  api->name = reinterpret_cast<decltype(api->name)>(source.find(#name, version)); \
  note(#name, reinterpret_cast<const void*>(api->name));
#define KVT_CUDA_OPTIONAL(name, version, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(source.find(#name, version));
#include "device/cuda_api.def"
#undef KVT_CUDA_OPTIONAL
#undef KVT_CUDA
  if (missing.empty()) return Status::ok();
  return unusable(std::string(kLibrary) + " lacks " + missing, "update the NVIDIA driver");
}

Status load(CudaApi* api) {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return unusable(why == nullptr ? "libcuda.so.1 cannot be opened" : why,
                    "install the NVIDIA driver to use device memory");
  }
  // Asked before anything else, so that an old driver is named as such and not as a list of missing symbols.
  using DriverGetVersion = cuda::Result(int*);
  if (auto* get_version = reinterpret_cast<DriverGetVersion*>(::dlsym(library, "cuDriverGetVersion"))) {
    (void)get_version(&api->driver_version);
  }
  const SymbolSource source(library);
  if (api->driver_version < kOldestCudaDriver || !source.is_usable()) {
    return unusable("the NVIDIA driver is too old: it speaks CUDA " + std::to_string(api->driver_version / 1000) + "." +
                        std::to_string(api->driver_version % 1000 / 10) + ", and 11.4 is the oldest that can be used",
                    "update the NVIDIA driver");
  }
  Status status = fill(source, api);
  if (status.is_ok()) status = withhold_cuda_features(api);
  if (!status.is_ok()) return status;
  if (const cuda::Result result = api->cuInit(0); result != cuda::kSuccess) {
    return unusable(api->describe(result, "cuInit"), "check the GPU and its driver with nvidia-smi");
  }
  return Status::ok();
}

const Loaded& loaded() {
  // Leaked on purpose: progress threads may outlive static destruction.
  static const Loaded* const instance = [] {
    auto* made = new Loaded;
    made->status = load(&made->api);
    return made;
  }();
  return *instance;
}

}  // namespace

std::string CudaApi::describe(cuda::Result result, const char* call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  (void)cuGetErrorName(result, &name);
  (void)cuGetErrorString(result, &text);
  std::string message = std::string(call) + ": " + (name == nullptr ? "error " + std::to_string(result) : name);
  if (text != nullptr) message += std::string(", ") + text;
  return message;
}

Status CudaApi::check(cuda::Result result, const char* call) const {
  if (result == cuda::kSuccess) return Status::ok();
  std::string message = describe(result, call);
  switch (result) {
    case cuda::kErrorOutOfMemory:
      return Status(StatusCode::kResource, std::move(message));
    case cuda::kErrorNoDevice:
    case cuda::kErrorNoBinaryForGpu:
    case cuda::kErrorPeerAccessUnsupported:
    case cuda::kErrorUnsupportedPtxVersion:
    case cuda::kErrorNotPermitted:
    case cuda::kErrorNotSupported:
      return Status(StatusCode::kCapability, std::move(message));
    case cuda::kErrorEccUncorrectable:
    case cuda::kErrorNvlinkUncorrectable:
    case cuda::kErrorIllegalAddress:
    case cuda::kErrorLaunchTimeout:
    case cuda::kErrorContextIsDestroyed:
    case cuda::kErrorAssert:
    case cuda::kErrorHardwareStack:
    case cuda::kErrorIllegalInstruction:
    case cuda::kErrorMisalignedAddress:
    case cuda::kErrorInvalidAddressSpace:
    case cuda::kErrorInvalidPc:
    case cuda::kErrorLaunchFailed:
    case cuda::kErrorMpsClientTerminated:
    case cuda::kErrorContained:
    case cuda::kErrorTensorMemoryLeak:
    case cuda::kErrorUnknown:
      return Status(StatusCode::kDeviceLost,
                    message +
                        "; the GPU is lost to this process, whose kernels may have caused it: start the process "
                        "again, and look for an Xid in the kernel log or with nvidia-smi");
    default:
      return Status(StatusCode::kTransport, std::move(message));
  }
}

Status load_cuda(const CudaApi** out) {
  const Loaded& found = loaded();
  if (found.status.is_ok()) *out = &found.api;
  return found.status;
}

}  // namespace kvt
