// What an agent says and keeps when a machine lacks something, over a stand-in for the driver. Needs no GPU.
#include <algorithm>

#include "device/inbound_flush.h"
#include "fake_device_base.h"
#include "fake_device_fixture.h"
#include "transport/router_transport.h"

namespace kvt::test {
namespace {

class FakeMachine : public FakeDeviceTest {
 protected:
  static std::unique_ptr<Transport> router(PathChoice choice, bool nixl_takes_devices) {
    auto made = make_router_transport(std::make_unique<FakeNixlBase>(nixl_takes_devices),
                                      {.choice = choice, .device = 0, .base_reaches_devices = true});
    const Status status = made->open();
    EXPECT_TRUE(status.is_ok()) << status.message();
    return made;
  }
  static std::vector<std::string> advice_of(Transport* transport) {
    std::vector<std::string> out;
    transport->take_advice(&out);
    return out;
  }
};

TEST_F(FakeMachine, APoolThatNixlDoesNotTakeIsGivenBack) {
  const auto agent = router(PathChoice::kRdma, false);
  const std::size_t before = free_bytes();
  Region pool;
  for (int i = 0; i < 3; ++i) {
    const Status status = agent->allocate_device_region(0, kPool, &pool);
    EXPECT_EQ(status.code(), StatusCode::kCapability);
    EXPECT_NE(status.message().find("libcudart.so.13"), std::string::npos) << status.message();
    EXPECT_EQ(free_bytes(), before);
  }
  EXPECT_TRUE(agent->close());
}

TEST_F(FakeMachine, MemoryThatNixlDoesNotTakeCanBeOfferedAgain) {
  DeviceBuffer engines;
  KVT_ASSERT_OK(DeviceBuffer::create(context_, kPool, &engines));
  const Region region{engines.device(), kPool, MemoryKind::kDevice, 0};
  const auto refusing = router(PathChoice::kRdma, false);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(refusing->register_region(region).code(), StatusCode::kCapability);
  EXPECT_TRUE(refusing->close());
  const auto taking = router(PathChoice::kRdma, true);
  KVT_ASSERT_OK(taking->register_region(region));
  EXPECT_EQ(taking->register_region(region).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(taking->close());
}

TEST_F(FakeMachine, WithKernelsTheLossOfNixlIsAdvice) {
  const auto agent = router(PathChoice::kAuto, false);
  Region pool;
  KVT_ASSERT_OK(agent->allocate_device_region(0, kPool, &pool));
  KVT_ASSERT_OK(agent->allocate_device_region(0, kPool, &pool));
  const std::vector<std::string> advice = advice_of(agent.get());
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("libcudart.so.13 was not found"), std::string::npos) << advice[0];
  EXPECT_TRUE(agent->close());
}

TEST_F(FakeMachine, PoolsOfAnySizeFallBackForOneReason) {
  FakeCuda::order({"fail cuMemExportToShareableHandle 801"});
  TestAgent agent("agent", p2p_on(0));
  KVT_ASSERT_OK(agent.opening());
  Region pool;
  for (std::size_t pages = 1; pages <= 3; ++pages) KVT_ASSERT_OK(agent.allocate(pages * kPage, &pool));
  std::vector<std::string> advice = agent.advice();
  ASSERT_FALSE(advice.empty());
  // The addon tells equal texts once.
  std::sort(advice.begin(), advice.end());
  EXPECT_EQ(std::unique(advice.begin(), advice.end()) - advice.begin(), 1) << advice.front();
  EXPECT_NE(advice.front().find("shared by IPC handle"), std::string::npos) << advice.front();
}

TEST_F(FakeMachine, KernelsThatDoNotFitNowAreNoLackOfTheMachine) {
  FakeCuda::order({"fail cuLibraryLoadData 2"});
  std::unique_ptr<PageKernels> kernels;
  Status status = PageKernels::load(context_, &kernels);
  EXPECT_EQ(status.code(), StatusCode::kResource) << status.message();
  EXPECT_NE(status.message().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("compute capability"), std::string::npos) << status.message();
  FakeCuda::order({"fail cuLibraryLoadData 719"});
  EXPECT_EQ(PageKernels::load(context_, &kernels).code(), StatusCode::kDeviceLost);
  FakeCuda::order({"fail cuLibraryLoadData 209"});
  status = PageKernels::load(context_, &kernels);
  EXPECT_EQ(status.code(), StatusCode::kCapability);
  EXPECT_NE(status.message().find("compute capability 8.0"), std::string::npos) << status.message();
  FakeCuda::order({});
  KVT_ASSERT_OK(PageKernels::load(context_, &kernels));
}

TEST_F(FakeMachine, AnAgentWhoseKernelsDidNotFitHasThemWithTheNextPool) {
  auto agent =
      make_router_transport(std::make_unique<FakeNixlBase>(true),
                            {.choice = PathChoice::kAuto, .device = std::nullopt, .base_reaches_devices = true});
  KVT_ASSERT_OK(agent->open());
  FakeCuda::order({"fail cuLibraryLoadData 2"});
  Region pool;
  EXPECT_EQ(agent->allocate_device_region(0, kPool, &pool).code(), StatusCode::kResource);
  FakeCuda::order({});
  KVT_ASSERT_OK(agent->allocate_device_region(0, kPool, &pool));
  std::vector<std::byte> metadata;
  KVT_ASSERT_OK(agent->metadata(&metadata));
  const auto receiver = router(PathChoice::kAuto, true);
  KVT_ASSERT_OK(receiver->allocate_device_region(0, kPool, &pool));
  KVT_ASSERT_OK(receiver->metadata(&metadata));
  KVT_ASSERT_OK(agent->begin_add_peer(1, metadata));
  Status error;
  await("the peer", [&] {
    receiver->progress();
    agent->progress();
    return agent->poll_peer(1, &error) == PeerState::kReady;
  });
  EXPECT_TRUE(agent->peer_paths(1).p2p.is_available) << agent->peer_paths(1).p2p.reason;
  EXPECT_TRUE(agent->close());
  EXPECT_TRUE(receiver->close());
}

TEST_F(FakeMachine, WhatANetworkCardWroteIsFlushedWhereTheGpuDoesNotOrderIt) {
  const auto agent = router(PathChoice::kRdma, true);
  const auto flushes = [] { return FakeCuda::calls("cuFlushGPUDirectRDMAWrites"); };
  const std::uint64_t before = flushes();
  KVT_ASSERT_OK(agent->flush_inbound());
  EXPECT_EQ(flushes(), before);
  FakeCuda::order({"ordering 0"});
  EXPECT_TRUE(probe_cuda().devices.at(0).inbound_writes_need_flush);
  KVT_ASSERT_OK(agent->flush_inbound());
  EXPECT_EQ(flushes(), before + 1);
  FakeCuda::order({"ordering 0", "fail cuFlushGPUDirectRDMAWrites 719"});
  EXPECT_EQ(agent->flush_inbound().code(), StatusCode::kDeviceLost);
  EXPECT_TRUE(agent->close());
}

// A driver is loaded once in a process, so that each of these has one of its own.
int said(const Status& status, StatusCode code, const std::string& text) {
  if (status.code() == code && status.message().find(text) != std::string::npos) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

TEST(FakeDriverDeathTest, TooOldIsNamedAsSuch) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        FakeCuda::order({"version 11030"});
        std::shared_ptr<const CudaContext> context;
        std::exit(said(CudaContext::retain(0, &context), StatusCode::kCapability,
                       "too old: it speaks CUDA 11.3, and 11.4 is the oldest that can be used; update"));
      },
      testing::ExitedWithCode(0), "");
}

TEST(FakeDriverDeathTest, ThatLacksACallIsNamedWithIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        FakeCuda::order({"withhold cuMemCreate"});
        std::shared_ptr<const CudaContext> context;
        std::exit(said(CudaContext::retain(0, &context), StatusCode::kCapability, "lacks cuMemCreate; update"));
      },
      testing::ExitedWithCode(0), "");
}

TEST(FakeDriverDeathTest, ThatCannotFlushSaysSoWhereItWouldHaveTo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        FakeCuda::order({"withhold cuFlushGPUDirectRDMAWrites", "ordering 0"});
        std::shared_ptr<const CudaContext> context;
        if (!CudaContext::retain(0, &context).is_ok()) std::exit(2);
        std::exit(said(flush_inbound(*context), StatusCode::kCapability, "cannot flush"));
      },
      testing::ExitedWithCode(0), "");
}

TEST(FakeDriverDeathTest, WithoutAGpuSaysWhatToCheck) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        FakeCuda::order({"devices 0"});
        std::exit(probe_cuda().reason.find("CUDA_VISIBLE_DEVICES") == std::string::npos ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(FakeDriverDeathTest, ThatLoadsKernelsByModuleIsUsable) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        FakeCuda::order({"withhold cuLibraryLoadData", "version 11080"});
        std::shared_ptr<const CudaContext> context;
        std::unique_ptr<PageKernels> kernels;
        if (!CudaContext::retain(0, &context).is_ok()) std::exit(2);
        std::exit(PageKernels::load(context, &kernels).is_ok() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvt::test
