#pragma once

#include "core/status.h"
#include "device/cuda_abi.h"

namespace kvt {

// The driver's entry points, by name. Null members exist only among the optional ones of cuda_api.def.
struct CudaApi {
#define KVT_CUDA(name, version, parameters) cuda::Result(*name) parameters = nullptr;
#define KVT_CUDA_OPTIONAL(name, version, parameters) KVT_CUDA(name, version, parameters)
  // The parameter lists use the driver's types by their short names.
  using Result = cuda::Result;
  using Device = cuda::Device;
  using DevicePointer = cuda::DevicePointer;
  using Context = cuda::Context;
  using Stream = cuda::Stream;
  using Event = cuda::Event;
  using Module = cuda::Module;
  using Function = cuda::Function;
  using Library = cuda::Library;
  using Kernel = cuda::Kernel;
  using AllocationHandle = cuda::AllocationHandle;
  using Uuid = cuda::Uuid;
  using AllocationProperties = cuda::AllocationProperties;
  using AccessDescription = cuda::AccessDescription;
  using IpcMemoryHandle = cuda::IpcMemoryHandle;
#include "device/cuda_api.def"
#undef KVT_CUDA_OPTIONAL
#undef KVT_CUDA

  int driver_version = 0;  // 1000 * major + 10 * minor

  // "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY, out of memory".
  std::string describe(cuda::Result result, const char* call) const;
  // The same as an error, for a result that is not kSuccess.
  // Memory that ran out is kResource; what a machine or driver cannot do is kCapability; the rest is kTransport.
  Status check(cuda::Result result, const char* call) const;
};

// The loaded and initialised driver of this process; loaded by the first caller, who waits for it (0.1 s and more), and
// never closed. kCapability with the remedy when there is no usable driver; every later call then says the same.
Status load_cuda(const CudaApi** out);

// A driver older than this cannot be used at all (it lacks cuGetProcAddress); the embedded kernels may ask for more.
inline constexpr int kOldestCudaDriver = 11040;

}  // namespace kvt
