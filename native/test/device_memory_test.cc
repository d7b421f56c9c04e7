// Contexts, pools, streams and events. Needs a GPU, except where a test says otherwise.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "device/cuda_event.h"
#include "device/peer_mapping.h"
#include "device_fixture.h"

namespace kvt {
namespace {

// Needs no GPU, and shows what a machine without one is told.
TEST(CudaDriver, SaysWhyItCannotBeUsed) {
  const CudaProbe probe = probe_cuda();
  if (probe.is_available) {
    EXPECT_GE(probe.driver_version, kOldestCudaDriver);
    EXPECT_GT(probe.device_count, 0);
    return;
  }
  EXPECT_FALSE(probe.reason.empty());
  std::shared_ptr<const CudaContext> context;
  const Status status = CudaContext::retain(0, &context);
  EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(context, nullptr);
}

using Device = DeviceTest;

TEST_F(Device, AnOrdinalThatIsNotThereIsRefused) {
  std::shared_ptr<const CudaContext> context;
  const Status status = CudaContext::retain(1000, &context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("1000"), std::string::npos) << status.message();
}

TEST_F(Device, CurrentContextsNest) {
  cuda::Context before = nullptr;
  KVT_ASSERT_OK(api().check(api().cuCtxGetCurrent(&before), "cuCtxGetCurrent"));
  {
    const CurrentContext outer(*context_);
    KVT_ASSERT_OK(outer.status());
    const CurrentContext inner(*context_);
    KVT_ASSERT_OK(inner.status());
    cuda::Context now = nullptr;
    KVT_ASSERT_OK(api().check(api().cuCtxGetCurrent(&now), "cuCtxGetCurrent"));
    EXPECT_EQ(now, context_->handle());
  }
  cuda::Context after = nullptr;
  KVT_ASSERT_OK(api().check(api().cuCtxGetCurrent(&after), "cuCtxGetCurrent"));
  EXPECT_EQ(after, before);
}

TEST_F(Device, AnOwnedPoolIsZeroedAndSaysHowItIsShared) {
  const auto owned = pool(3'000'001);
  ASSERT_NE(owned, nullptr);
  EXPECT_EQ(owned->size(), 3'000'001U);
  for (const std::byte b : download(owned->base(), owned->size())) ASSERT_EQ(b, std::byte{0});
  const PoolHandle& handle = owned->handle();
  if (handle.sharing == PoolSharing::kDescriptor) {
    struct stat status {};
    EXPECT_EQ(::fstat(handle.descriptor, &status), 0);
    EXPECT_GE(handle.allocation_size, owned->size());
    EXPECT_TRUE(owned->notice().empty()) << owned->notice();
  } else {
    EXPECT_FALSE(owned->notice().empty());
  }
}

TEST_F(Device, MemoryThatIsNotThereIsAResourceError) {
  std::unique_ptr<DevicePool> made;
  Status status = DevicePool::allocate(context_, context_->memory_bytes() + 1, &made);
  EXPECT_EQ(status.code(), StatusCode::kResource);
  // Not more than the device has, but more than is free beside the first.
  const auto first = pool(context_->memory_bytes() / 2);
  ASSERT_NE(first, nullptr);
  status = DevicePool::allocate(context_, context_->memory_bytes() / 4 * 3, &made);
  EXPECT_EQ(status.code(), StatusCode::kResource);
  EXPECT_NE(status.message().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << status.message();
  EXPECT_EQ(made, nullptr);
}

TEST_F(Device, PoolsComeAndGoWithoutLeaking) {
  const auto free_bytes = [&] {
    const CurrentContext current(*context_);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_TRUE(api().check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo").is_ok());
    return free;
  };
  (void)pool(std::size_t{1} << 30);
  const std::size_t before = free_bytes();
  for (int i = 0; i < 20; ++i) ASSERT_NE(pool(std::size_t{1} << 30), nullptr);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Device, RegisteredMemoryMayLieAnywhereInItsAllocation) {
  DeviceBuffer engine_memory;
  KVT_ASSERT_OK(DeviceBuffer::create(context_, std::size_t{8} << 20, &engine_memory));
  std::unique_ptr<DevicePool> adopted;
  KVT_ASSERT_OK(DevicePool::adopt(context_, engine_memory.device() + 4097, 1 << 20, &adopted));
  EXPECT_EQ(adopted->base(), engine_memory.device() + 4097);
  EXPECT_EQ(adopted->handle().offset % 4096, (engine_memory.device() + 4097) % 4096);
  EXPECT_GE(adopted->handle().allocation_size, adopted->handle().offset + adopted->size());
  EXPECT_EQ(adopted->handle().sharing, PoolSharing::kIpc) << adopted->notice();

  std::unique_ptr<DevicePool> refused;
  EXPECT_EQ(DevicePool::adopt(context_, engine_memory.device() + 4097, std::size_t{1} << 40, &refused).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(DevicePool::adopt(context_, engine_memory.device(), 0, &refused).code(), StatusCode::kInvalidArgument);
  int on_stack = 0;
  EXPECT_EQ(DevicePool::adopt(context_, reinterpret_cast<std::uintptr_t>(&on_stack), 4, &refused).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refused, nullptr);
}

TEST_F(Device, EventsAreAskedWithoutWaitingAndOrderStreams) {
  const auto memory = pool(std::size_t{4} << 30);
  ASSERT_NE(memory, nullptr);
  CudaEvent event;
  CudaEvent behind;
  KVT_ASSERT_OK(CudaEvent::create(context_, EventTiming::kOff, &event));
  KVT_ASSERT_OK(CudaEvent::create(context_, EventTiming::kOff, &behind));
  Status error;
  EXPECT_EQ(event.query(&error), EventProgress::kReached);  // never recorded

  CudaStream other;
  KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &other));
  bool was_pending = false;
  for (int attempt = 0; attempt < 20 && !was_pending; ++attempt) {
    {
      const CurrentContext current(*context_);
      for (int i = 0; i < 8; ++i) {
        KVT_ASSERT_OK(
            api().check(api().cuMemsetD8Async(memory->base(), 1, memory->size(), stream_.handle()), "memset"));
      }
    }
    KVT_ASSERT_OK(event.record(reinterpret_cast<std::uint64_t>(stream_.handle())));
    KVT_ASSERT_OK(event.wait_on(other));
    KVT_ASSERT_OK(behind.record(other));
    // If the mark behind it is reached, so is the event; and while the event is pending, nothing passed it.
    const EventProgress second = behind.query(&error);
    const EventProgress first = event.query(&error);
    EXPECT_FALSE(second == EventProgress::kReached && first == EventProgress::kPending);
    was_pending = first == EventProgress::kPending;
    KVT_ASSERT_OK(other.synchronize());
    EXPECT_EQ(event.query(&error), EventProgress::kReached);
    EXPECT_EQ(behind.query(&error), EventProgress::kReached);
  }
  EXPECT_TRUE(was_pending);
}

TEST_F(Device, HandlesThatLieAreRefused) {
  const auto owned = pool(1 << 20);
  std::unique_ptr<PeerMapping> mapping;
  PoolHandle handle = owned->handle();
  handle.offset = handle.allocation_size;
  EXPECT_EQ(PeerMapping::open(context_, handle, UniqueFd(), &mapping).code(), StatusCode::kTransport);
  handle = owned->handle();
  handle.sharing = PoolSharing::kNone;
  EXPECT_EQ(PeerMapping::open(context_, handle, UniqueFd(), &mapping).code(), StatusCode::kCapability);
  handle = owned->handle();
  handle.device.bytes[0] ^= 0xff;
  EXPECT_EQ(PeerMapping::open(context_, handle, UniqueFd(), &mapping).code(), StatusCode::kCapability);
  handle = owned->handle();
  handle.sharing = PoolSharing::kDescriptor;
  EXPECT_FALSE(PeerMapping::open(context_, handle, UniqueFd(), &mapping).is_ok());
  EXPECT_EQ(mapping, nullptr);
}

}  // namespace
}  // namespace kvt
