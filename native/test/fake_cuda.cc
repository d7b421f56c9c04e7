// A stand-in for libcuda.so.1 for machines without a GPU: device memory is host memory, and the embedded kernels are
// their references on the host. Agents, events, aborts and failures are then the real ones. See fake_cuda_orders.h for
// what tests can ask of it.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda_abi.h"
#include "device/kernel_reference.h"
#include "fake_cuda_machine.h"

using namespace kvt::cuda;
using kvt::AbortWord;
using kvt::CopyArguments;
using kvt::test::FakeCudaMachine;
using kvt::test::FakeCudaOrders;
using Image = const void*;

namespace {

constexpr Result kLost = 719;
constexpr Result kUnknownCall = 500;

thread_local std::vector<Context> contexts{nullptr};

int current_device() { return static_cast<int>(reinterpret_cast<std::intptr_t>(contexts.back())) - 1; }

// One call of the driver: counted, and failed where the orders say so.
class Call {
 public:
  explicit Call(const char* name) : lock_(machine.mutex) {
    const std::uint64_t count = ++machine.calls[name];
    const auto ordered = orders.number(std::string("fail ") + name);
    failure = ordered ? static_cast<Result>(*ordered) : kSuccess;
    const auto refused = orders.number(std::string("refuse ") + name);
    if (refused && static_cast<std::uint64_t>(*refused) == count) failure = kErrorOutOfMemory;
  }

  // Queues work, and does what can be done.
  Result queue(Stream stream, FakeCudaMachine::Work work) {
    if (failure != kSuccess) return failure;
    if (orders.has("lost")) return kLost;
    machine.queue(stream, std::move(work));
    machine.run(orders);
    return kSuccess;
  }
  Result copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, Stream stream) {
    return queue(stream, [to, from, bytes] {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return true;
    });
  }
  Result wait(const std::function<bool()>& is_over) {
    while (failure == kSuccess) {
      orders = FakeCudaOrders::read();
      if (orders.has("lost")) return kLost;
      machine.run(orders);
      if (is_over()) break;
      lock_.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock_.lock();
    }
    return failure;
  }

  FakeCudaMachine& machine = FakeCudaMachine::get();
  FakeCudaOrders orders = FakeCudaOrders::read();
  Result failure = kSuccess;

 private:
  std::unique_lock<std::mutex> lock_;
};

FakeCudaMachine::EventState* state_of(Event event) { return reinterpret_cast<FakeCudaMachine::EventState*>(event); }

bool is_reached(const Call& call, Event event) {
  const auto& state = *state_of(event);
  const auto from = call.orders.number("hide-from");
  const auto launches = call.machine.calls.find("cuLaunchKernel");
  const bool is_hidden = call.orders.has("hide") || (from && launches != call.machine.calls.end() &&
                                                     launches->second >= static_cast<std::uint64_t>(*from));
  return state.reached >= state.recorded && (state.is_of_forward || !is_hidden);
}

void run_kernel(const std::string& name, const CopyArguments& arguments) {
  if (arguments.abort != 0) {
    auto* const word = reinterpret_cast<AbortWord*>(arguments.abort);
    std::atomic_ref<unsigned>(word->started).store(1);
    if (std::atomic_ref<unsigned>(word->cancelled).load() != 0) return;
  }
  if (name == "kvt_gather") return kvt::reference_gather(arguments);
  if (name == "kvt_scatter") return kvt::reference_scatter(arguments);
  if (name == "kvt_copy_summed") return kvt::reference_copy_summed(arguments);
  kvt::reference_copy(arguments);
}

}  // namespace

// The calls of cuda_api.def, declared from it so that a changed parameter does not go unnoticed.
#define KVT_CUDA(name, version, parameters) extern "C" __attribute__((visibility("default"))) Result name parameters;
#define KVT_CUDA_OPTIONAL(name, version, parameters) KVT_CUDA(name, version, parameters)
#include "device/cuda_api.def"
#undef KVT_CUDA_OPTIONAL
#undef KVT_CUDA

extern "C" {

Result cuInit(unsigned) { return Call("cuInit").failure; }
Result cuDriverGetVersion(int* version) {
  *version = static_cast<int>(FakeCudaOrders::read().number("version").value_or(13000));
  return kSuccess;
}
Result cuGetErrorName(Result code, const char** text) {
  static const std::map<Result, const char*> names{{kErrorOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {kLost, "CUDA_ERROR_LAUNCH_FAILED"},
                                                   {kErrorNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                   {kErrorNotPermitted, "CUDA_ERROR_NOT_PERMITTED"},
                                                   {kErrorNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
                                                   {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                   {kErrorNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"}};
  const auto entry = names.find(code);
  *text = entry == names.end() ? "CUDA_ERROR_UNKNOWN" : entry->second;
  return kSuccess;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "as the test ordered";
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  const Call call("cuDeviceGetCount");
  *count = static_cast<int>(call.orders.number("devices").value_or(1));
  return call.failure;
}
Result cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
Result cuDeviceGetName(char* name, int size, Device) {
  std::snprintf(name, static_cast<std::size_t>(size), "a stand-in for a GPU");
  return kSuccess;
}
Result cuDeviceGetUuid(Uuid* uuid, Device device) {
  std::memset(uuid->bytes, 0x5a, sizeof uuid->bytes);
  uuid->bytes[0] = static_cast<unsigned char>(device);
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, Device) {
  const Call call("cuDeviceGetAttribute");
  switch (attribute) {
    case kAttributeMultiprocessorCount:
      *value = 132;
      break;
    case kAttributeComputeCapabilityMajor:
      *value = static_cast<int>(call.orders.number("capability").value_or(9));
      break;
    case kAttributeVirtualMemoryManagementSupported:
    case kAttributeHandleTypePosixFdSupported:
    case kAttributeGpuDirectRdmaFlushWritesOptions:
      *value = 1;
      break;
    case kAttributeGpuDirectRdmaWritesOrdering:
      *value = static_cast<int>(call.orders.number("ordering").value_or(200));
      break;
    default:
      *value = 0;
  }
  return call.failure;
}
Result cuDeviceTotalMem(std::size_t* bytes, Device) {
  const Call call("cuDeviceTotalMem");
  *bytes = FakeCudaMachine::capacity(call.orders);
  return call.failure;
}
Result cuDeviceCanAccessPeer(int* can, Device, Device) {
  *can = 1;
  return Call("cuDeviceCanAccessPeer").failure;
}

// Only what a GPU's link is told by: over NVLink there are atomics of the peer's memory.
Result cuDeviceGetP2PAttribute(int* value, int attribute, Device device, Device peer) {
  const Call call("cuDeviceGetP2PAttribute");
  if (attribute != kPeerNativeAtomicSupported || device == peer) return kErrorInvalidValue;
  *value = call.orders.has("pcie") ? 0 : 1;
  return call.failure;
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  *context = reinterpret_cast<Context>(static_cast<std::intptr_t>(device) + 1);
  return Call("cuDevicePrimaryCtxRetain").failure;
}
Result cuDevicePrimaryCtxRelease(Device) { return kSuccess; }
Result cuCtxSetCurrent(Context context) {
  contexts.back() = context;
  return kSuccess;
}
Result cuCtxGetCurrent(Context* context) {
  *context = contexts.back();
  return kSuccess;
}
Result cuCtxPushCurrent(Context context) {
  contexts.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent(Context* context) {
  *context = contexts.back();
  if (contexts.size() > 1) contexts.pop_back();
  return kSuccess;
}
Result cuCtxEnablePeerAccess(Context, unsigned) { return Call("cuCtxEnablePeerAccess").failure; }
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

Result cuStreamCreateWithPriority(Stream* stream, unsigned, int priority) {
  Call call("cuStreamCreateWithPriority");
  if (call.failure == kSuccess) *stream = call.machine.add_stream(priority < 0);
  return call.failure;
}
Result cuStreamDestroy(Stream stream) {
  Call call("cuStreamDestroy");
  call.machine.remove_stream(stream);
  return kSuccess;
}
Result cuStreamQuery(Stream stream) {
  Call call("cuStreamQuery");
  if (call.orders.has("lost")) return kLost;
  call.machine.run(call.orders);
  return call.machine.is_idle(stream) ? call.failure : kErrorNotReady;
}
Result cuStreamSynchronize(Stream stream) {
  Call call("cuStreamSynchronize");
  return call.wait([&] { return call.machine.is_idle(stream); });
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  Call call("cuStreamWaitEvent");
  return call.queue(stream,
                    [state = state_of(event), wanted = state_of(event)->recorded] { return state->reached >= wanted; });
}

Result cuEventCreate(Event* event, unsigned) {
  const Call call("cuEventCreate");
  if (call.failure == kSuccess) *event = reinterpret_cast<Event>(new FakeCudaMachine::EventState);
  return call.failure;
}
// Never freed: a stream may still wait for it, as the driver allows.
Result cuEventDestroy(Event) { return kSuccess; }
Result cuEventRecord(Event event, Stream stream) {
  Call call("cuEventRecord");
  auto* const state = state_of(event);
  state->is_of_forward = call.machine.is_forward(stream);
  const std::uint64_t mark = ++state->recorded;
  return call.queue(stream, [state, mark] {
    state->reached = mark;
    return true;
  });
}
Result cuEventQuery(Event event) {
  Call call("cuEventQuery");
  if (call.orders.has("lost")) return kLost;
  call.machine.run(call.orders);
  return is_reached(call, event) ? call.failure : kErrorNotReady;
}
Result cuEventSynchronize(Event event) {
  Call call("cuEventSynchronize");
  return call.wait([&] { return is_reached(call, event); });
}
Result cuEventElapsedTime(float* milliseconds, Event, Event) {
  *milliseconds = 1;
  return kSuccess;
}

Result cuMemGetInfo(std::size_t* free, std::size_t* total) {
  const Call call("cuMemGetInfo");
  *total = FakeCudaMachine::capacity(call.orders);
  *free = *total - call.machine.used();
  return call.failure;
}
Result cuMemAlloc(DevicePointer* pointer, std::size_t bytes) {
  Call call("cuMemAlloc");
  if (call.failure != kSuccess) return call.failure;
  return call.machine.allocate(bytes, current_device(), call.orders, pointer);
}
Result cuMemFree(DevicePointer pointer) {
  Call call("cuMemFree");
  return call.machine.free(pointer) ? call.failure : kErrorInvalidValue;
}
Result cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  const Call call("cuMemHostAlloc");
  if (call.failure == kSuccess) *pointer = ::operator new(bytes, std::align_val_t{4096});
  return call.failure;
}
Result cuMemFreeHost(void* pointer) {
  ::operator delete(pointer, std::align_val_t{4096});
  return kSuccess;
}
Result cuMemcpyHtoDAsync(DevicePointer to, const void* from, std::size_t bytes, Stream stream) {
  return Call("cuMemcpyHtoDAsync").copy(to, reinterpret_cast<std::uintptr_t>(from), bytes, stream);
}
Result cuMemcpyDtoHAsync(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
  return Call("cuMemcpyDtoHAsync").copy(reinterpret_cast<std::uintptr_t>(to), from, bytes, stream);
}
Result cuMemcpyDtoDAsync(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
  return Call("cuMemcpyDtoDAsync").copy(to, from, bytes, stream);
}
Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, Stream stream) {
  return Call("cuMemsetD8Async").queue(stream, [to, value, bytes] {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return true;
  });
}
Result cuMemGetAddressRange(DevicePointer* base, std::size_t* bytes, DevicePointer pointer) {
  const Call call("cuMemGetAddressRange");
  const auto* const memory = call.machine.find(pointer, base);
  if (memory == nullptr) return kErrorInvalidValue;
  *bytes = memory->bytes;
  return call.failure;
}
Result cuPointerGetAttribute(void* value, int attribute, DevicePointer pointer) {
  const Call call("cuPointerGetAttribute");
  std::uintptr_t base = 0;
  const auto* const memory = call.machine.find(pointer, &base);
  if (memory == nullptr) return kErrorInvalidValue;
  if (attribute == kPointerMemoryType) *static_cast<unsigned*>(value) = kMemoryTypeDevice;
  if (attribute == kPointerDeviceOrdinal) *static_cast<int*>(value) = memory->device;
  return call.failure;
}

Result cuIpcGetMemHandle(IpcMemoryHandle* handle, DevicePointer pointer) {
  const Call call("cuIpcGetMemHandle");
  std::uintptr_t base = 0;
  const auto* const memory = call.machine.find(pointer, &base);
  if (memory == nullptr || memory->file < 0) return kErrorNotSupported;
  std::snprintf(handle->reserved, sizeof handle->reserved, "/proc/%d/fd/%d %zu", ::getpid(), memory->file,
                memory->bytes);
  return call.failure;
}
Result cuIpcOpenMemHandle(DevicePointer* pointer, IpcMemoryHandle handle, unsigned) {
  Call call("cuIpcOpenMemHandle");
  char path[64];
  std::size_t bytes = 0;
  if (std::sscanf(handle.reserved, "%63s %zu", path, &bytes) != 2) return kErrorInvalidValue;
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kErrorInvalidValue;
  *pointer = call.machine.map(file, bytes, current_device(), 0);
  ::close(file);
  return call.failure;
}
Result cuIpcCloseMemHandle(DevicePointer pointer) {
  Call call("cuIpcCloseMemHandle");
  return call.machine.free(pointer) ? kSuccess : kErrorInvalidValue;
}

Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties*, int) {
  *bytes = std::size_t{2} << 20;
  return kSuccess;
}
Result cuMemCreate(AllocationHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                   unsigned long long) {
  Call call("cuMemCreate");
  if (call.failure != kSuccess) return call.failure;
  *handle = call.machine.create(bytes, call.orders);
  if (*handle == 0) return kErrorOutOfMemory;
  call.machine.handle(*handle)->device = properties->location.id;
  return kSuccess;
}
Result cuMemRelease(AllocationHandle handle) {
  Call call("cuMemRelease");
  call.machine.release(handle);
  return kSuccess;
}
Result cuMemAddressReserve(DevicePointer* pointer, std::size_t bytes, std::size_t, DevicePointer, unsigned long long) {
  const Call call("cuMemAddressReserve");
  void* const base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *pointer = reinterpret_cast<std::uintptr_t>(base);
  return call.failure;
}
Result cuMemAddressFree(DevicePointer pointer, std::size_t bytes) {
  ::munmap(reinterpret_cast<void*>(pointer), bytes);
  return kSuccess;
}
Result cuMemMap(DevicePointer pointer, std::size_t bytes, std::size_t, AllocationHandle handle, unsigned long long) {
  Call call("cuMemMap");
  const auto* const memory = call.machine.handle(handle);
  if (memory == nullptr || bytes > memory->bytes) return kErrorInvalidValue;
  if (call.failure == kSuccess) (void)call.machine.map(memory->file, bytes, memory->device, pointer);
  return call.failure;
}
Result cuMemUnmap(DevicePointer pointer, std::size_t bytes) {
  Call call("cuMemUnmap");
  if (!call.machine.free(pointer)) return kErrorInvalidValue;
  // The addresses stay reserved.
  (void)::mmap(reinterpret_cast<void*>(pointer), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return kSuccess;
}
Result cuMemSetAccess(DevicePointer, std::size_t, const AccessDescription*, std::size_t) {
  return Call("cuMemSetAccess").failure;
}
Result cuMemExportToShareableHandle(void* shareable, AllocationHandle handle, int, unsigned long long) {
  Call call("cuMemExportToShareableHandle");
  if (call.failure == kSuccess) *static_cast<int*>(shareable) = ::dup(call.machine.handle(handle)->file);
  return call.failure;
}
Result cuMemImportFromShareableHandle(AllocationHandle* handle, void* shareable, int) {
  Call call("cuMemImportFromShareableHandle");
  *handle = call.machine.import(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
  return *handle == 0 ? kErrorInvalidValue : call.failure;
}

// Modules and libraries are nothing; a kernel is its name.
Result cuModuleLoadData(Module*, Image) { return Call("cuModuleLoadData").failure; }
Result cuModuleUnload(Module) { return kSuccess; }
Result cuModuleGetFunction(Function* function, Module, const char* name) {
  *function = reinterpret_cast<Function>(const_cast<char*>(name));
  return Call("cuModuleGetFunction").failure;
}
Result cuFuncSetAttribute(Function, int, int) { return kSuccess; }
Result cuLibraryLoadData(Library* library, Image, int*, void**, unsigned, int*, void**, unsigned) {
  *library = reinterpret_cast<Library>(library);
  return Call("cuLibraryLoadData").failure;
}
Result cuLibraryUnload(Library) { return kSuccess; }
Result cuLibraryGetKernel(Kernel* kernel, Library, const char* name) {
  *kernel = reinterpret_cast<Kernel>(const_cast<char*>(name));
  return kSuccess;
}
Result cuKernelGetFunction(Function* function, Kernel kernel) {
  *function = reinterpret_cast<Function>(kernel);
  return kSuccess;
}
Result cuLaunchKernel(Function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      Stream stream, void** parameters, void**) {
  Call call("cuLaunchKernel");
  const std::string name = reinterpret_cast<const char*>(function);
  // Page content takes other arguments; tests of pages here fill and check them from the host.
  if (name == "kvt_fill" || name == "kvt_verify") return kErrorNotSupported;
  ++call.machine.calls[name];
  const CopyArguments arguments = *static_cast<const CopyArguments*>(parameters[0]);
  return call.queue(stream, [name, arguments] {
    run_kernel(name, arguments);
    return true;
  });
}
Result cuFlushGPUDirectRDMAWrites(int, int) { return Call("cuFlushGPUDirectRDMAWrites").failure; }

__attribute__((visibility("default"))) Result cuGetProcAddress_v2(const char* name, void** out, int, std::uint64_t,
                                                                  int*) {
  static const std::map<std::string, void*> known{
#define KVT_CUDA(name, version, parameters) {#name, reinterpret_cast<void*>(&name)},
#define KVT_CUDA_OPTIONAL(name, version, parameters) KVT_CUDA(name, version, parameters)
#include "device/cuda_api.def"
#undef KVT_CUDA_OPTIONAL
#undef KVT_CUDA
  };
  const auto entry = known.find(name);
  const bool is_withheld = FakeCudaOrders::read().has(std::string("withhold ") + name);
  *out = entry == known.end() || is_withheld ? nullptr : entry->second;
  return *out == nullptr ? kUnknownCall : kSuccess;
}

// How often the driver's call was made, for tests.
__attribute__((visibility("default"))) std::uint64_t kvt_fake_cuda_calls(const char* name) {
  const Call call("");
  return call.machine.calls[name];
}
}
