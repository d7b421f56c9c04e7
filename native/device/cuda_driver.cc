#include "device/cuda_driver.h"

#include <array>

#include "device/cuda_api.h"
#include "device/peer_mapping.h"

namespace kvt {
namespace {

int attribute_of(const CudaApi& api, cuda::Device device, int which) {
  int value = 0;
  return api.cuDeviceGetAttribute(&value, which, device) == cuda::kSuccess ? value : 0;
}

std::string hexadecimal(const cuda::Uuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : uuid.bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

CudaDevice describe(const CudaApi& api, int ordinal, int count) {
  CudaDevice out;
  cuda::Device device = 0;
  if (api.cuDeviceGet(&device, ordinal) != cuda::kSuccess) return out;
  std::array<char, 128> name{};
  (void)api.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device);
  out.name = name.data();
  cuda::Uuid uuid{};
  (void)api.cuDeviceGetUuid(&uuid, device);
  out.uuid = hexadecimal(uuid);
  out.architecture = 10 * attribute_of(api, device, cuda::kAttributeComputeCapabilityMajor) +
                     attribute_of(api, device, cuda::kAttributeComputeCapabilityMinor);
  out.multiprocessor_count = attribute_of(api, device, cuda::kAttributeMultiprocessorCount);
  (void)api.cuDeviceTotalMem(&out.memory_bytes, device);
  for (int other = 0; other < count; ++other) {
    cuda::Device peer = 0;
    int can = 0;
    if (other == ordinal || api.cuDeviceGet(&peer, other) != cuda::kSuccess) continue;
    if (api.cuDeviceCanAccessPeer(&can, device, peer) != cuda::kSuccess || can == 0) continue;
    out.peers.push_back(other);
    out.links.push_back(link_between(api, device, peer));
  }
  out.inbound_writes_need_flush =
      attribute_of(api, device, cuda::kAttributeGpuDirectRdmaWritesOrdering) < cuda::kRdmaWritesOrderedForOwner;
  return out;
}

}  // namespace

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
  for (int i = 0; i < probe.device_count; ++i) probe.devices.push_back(describe(*api, i, probe.device_count));
  probe.is_available = true;
  return probe;
}

}  // namespace kvt
