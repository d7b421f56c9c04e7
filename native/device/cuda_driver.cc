#include "device/cuda_driver.h"

#include "device/cuda_api.h"

namespace kvt {

CudaProbe probe_cuda() {
  CudaProbe probe;
  const CudaApi* api = nullptr;
  if (Status status = load_cuda(&api); !status.is_ok()) {
    probe.reason = status.message();
    return probe;
  }
  probe.library = "libcuda.so.1";
  probe.driver_version = api->driver_version;
  if (Status status = api->check(api->cuDeviceGetCount(&probe.device_count), "cuDeviceGetCount"); !status.is_ok()) {
    probe.reason = status.message();
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
