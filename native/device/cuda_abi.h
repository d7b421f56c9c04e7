#pragma once

#include <cstddef>
#include <cstdint>

// The part of the CUDA driver's binary interface that this package calls. It is written out here because no CUDA header
// may be needed to build; device_abi_test.cc compares each size and value with the real cuda.h where one is installed.
namespace kvt::cuda {

using Result = int;
using Device = int;
using DevicePointer = std::uintptr_t;  // unsigned long long in the driver, as wide
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using AllocationHandle = std::uint64_t;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidImage = 200;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNoBinaryForGpu = 209;
inline constexpr Result kErrorPeerAccessUnsupported = 217;
inline constexpr Result kErrorInvalidPtx = 218;
inline constexpr Result kErrorJitCompilerNotFound = 221;
inline constexpr Result kErrorUnsupportedPtxVersion = 222;
inline constexpr Result kErrorJitDisabled = 223;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorPeerAccessAlreadyEnabled = 704;
// The context is broken for good, or what ran in it was killed.
inline constexpr Result kErrorEccUncorrectable = 214;
inline constexpr Result kErrorNvlinkUncorrectable = 220;
inline constexpr Result kErrorIllegalAddress = 700;
inline constexpr Result kErrorLaunchTimeout = 702;
inline constexpr Result kErrorContextIsDestroyed = 709;
inline constexpr Result kErrorAssert = 710;
inline constexpr Result kErrorHardwareStack = 714;
inline constexpr Result kErrorIllegalInstruction = 715;
inline constexpr Result kErrorMisalignedAddress = 716;
inline constexpr Result kErrorInvalidAddressSpace = 717;
inline constexpr Result kErrorInvalidPc = 718;
inline constexpr Result kErrorLaunchFailed = 719;
inline constexpr Result kErrorMpsClientTerminated = 810;
// Of NVLink too: accesses to a peer's memory that went wrong.
inline constexpr Result kErrorContained = 226;
inline constexpr Result kErrorTensorMemoryLeak = 721;
// What a GPU that is off the bus says.
inline constexpr Result kErrorUnknown = 999;
inline constexpr Result kErrorNotPermitted = 800;
inline constexpr Result kErrorNotSupported = 801;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;

inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr int kAttributePciBusId = 33;
inline constexpr int kAttributeComputeCapabilityMajor = 75;
inline constexpr int kAttributeComputeCapabilityMinor = 76;
inline constexpr int kAttributeMaxSharedMemoryPerBlockOptin = 97;
inline constexpr int kAttributeVirtualMemoryManagementSupported = 102;
inline constexpr int kAttributeHandleTypePosixFdSupported = 103;
inline constexpr int kAttributeGpuDirectRdmaWithMappingSupported = 110;

inline constexpr int kAttributeGpuDirectRdmaFlushWritesOptions = 117;
inline constexpr int kAttributeGpuDirectRdmaWritesOrdering = 118;
inline constexpr int kRdmaWritesOrderedForOwner = 100;
inline constexpr int kFlushCurrentContext = 0;
inline constexpr int kFlushToOwner = 100;

inline constexpr int kPeerNativeAtomicSupported = 3;

inline constexpr int kFunctionMaxDynamicSharedSize = 8;

inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerMemoryType = 2;
inline constexpr unsigned kMemoryTypeDevice = 2;

inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kGranularityRecommended = 1;

struct Uuid {
  unsigned char bytes[16];
};

struct MemoryLocation {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int requested_handle_types;
  MemoryLocation location;
  void* win32_handle_metadata;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescription {
  MemoryLocation location;
  int flags;
};

struct IpcMemoryHandle {
  char reserved[64];
};

}  // namespace kvt::cuda
