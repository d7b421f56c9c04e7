#include "device/cuda_withheld.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace kvt {
namespace {

constexpr const char* kVariable = "KV_TRANSCEIVER_CUDA_WITHOUT";

cuda::Result no_peer_access(int* can, cuda::Device, cuda::Device) {
  *can = 0;
  return cuda::kSuccess;
}

cuda::Result no_descriptor(void*, cuda::AllocationHandle, int, unsigned long long) { return cuda::kErrorNotSupported; }

cuda::Result no_ipc_handle(cuda::IpcMemoryHandle*, cuda::DevicePointer) { return cuda::kErrorNotSupported; }

bool withhold(std::string_view name, CudaApi* api) {
  if (name == "peer-access") {
    api->cuDeviceCanAccessPeer = &no_peer_access;
  } else if (name == "descriptors") {
    api->cuMemExportToShareableHandle = &no_descriptor;
  } else if (name == "ipc-handles") {
    api->cuIpcGetMemHandle = &no_ipc_handle;
  } else {
    return false;
  }
  return true;
}

}  // namespace

Status withhold_cuda_features(CudaApi* api) {
  const char* const value = std::getenv(kVariable);
  std::string_view left = value == nullptr ? "" : value;
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find(','));
    if (!withhold(name, api)) {
      return Status(StatusCode::kInvalidArgument,
                    std::string(kVariable) + ": '" + std::string(name) +
                        "' cannot be withheld; list peer-access, descriptors or ipc-handles, or unset it");
    }
    left.remove_prefix(name.size() == left.size() ? name.size() : name.size() + 1);
  }
  return Status::ok();
}

}  // namespace kvt
