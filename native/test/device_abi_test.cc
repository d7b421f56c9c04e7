// Compares the written-out driver interface with the real cuda.h; built where nvcc brought one.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "device/cuda_abi.h"
#include "device/cuda_api.h"

namespace kvt {
namespace {

static_assert(sizeof(cuda::DevicePointer) == sizeof(CUdeviceptr));
static_assert(sizeof(cuda::Device) == sizeof(CUdevice));
static_assert(sizeof(cuda::AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(cuda::Uuid) == sizeof(CUuuid));
static_assert(sizeof(cuda::IpcMemoryHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(cuda::MemoryLocation) == sizeof(CUmemLocation));
static_assert(offsetof(cuda::MemoryLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(cuda::AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(cuda::AllocationProperties, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(cuda::AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(cuda::AllocationProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(cuda::AllocationProperties, flags.gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(sizeof(cuda::AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(cuda::AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

static_assert(cuda::kSuccess == CUDA_SUCCESS);
static_assert(cuda::kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(cuda::kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(cuda::kErrorInvalidImage == CUDA_ERROR_INVALID_IMAGE);
static_assert(cuda::kErrorInvalidPtx == CUDA_ERROR_INVALID_PTX);
static_assert(cuda::kErrorJitCompilerNotFound == CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
static_assert(cuda::kErrorJitDisabled == CUDA_ERROR_JIT_COMPILATION_DISABLED);
static_assert(cuda::kErrorInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(cuda::kErrorNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(cuda::kErrorPeerAccessUnsupported == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
static_assert(cuda::kErrorUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(cuda::kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kErrorPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(cuda::kErrorNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(cuda::kErrorNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kEventDefault == CU_EVENT_DEFAULT);
static_assert(cuda::kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(cuda::kIpcLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kAttributeMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(cuda::kAttributeComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cuda::kAttributeComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda::kAttributeHandleTypePosixFdSupported ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(cuda::kAttributeGpuDirectRdmaFlushWritesOptions ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(cuda::kAttributeGpuDirectRdmaWritesOrdering == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(cuda::kRdmaWritesOrderedForOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(cuda::kFlushCurrentContext == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(cuda::kPeerNativeAtomicSupported == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
static_assert(cuda::kFlushToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
static_assert(cuda::kAttributeGpuDirectRdmaWithMappingSupported ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(cuda::kFunctionMaxDynamicSharedSize == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(cuda::kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cuda::kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(cuda::kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(cuda::kHandlePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(cuda::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(cuda::kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(cuda::kGranularityRecommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

// Each call takes as many parameters as the header's function of that name.
template <typename... Parameters>
constexpr std::size_t count_of(CUresult (*)(Parameters...)) {
  return sizeof...(Parameters);
}
template <typename... Parameters>
constexpr std::size_t count_of(cuda::Result (*)(Parameters...)) {
  return sizeof...(Parameters);
}

TEST(CudaAbi, CallsTakeTheParametersOfTheHeader) {
#define KVT_CUDA(name, version, parameters) EXPECT_EQ(count_of(CudaApi{}.name), count_of(decltype(&::name){})) << #name;
#define KVT_CUDA_OPTIONAL(name, version, parameters) KVT_CUDA(name, version, parameters)
#include "device/cuda_api.def"
#undef KVT_CUDA_OPTIONAL
#undef KVT_CUDA
}

}  // namespace
}  // namespace kvt
