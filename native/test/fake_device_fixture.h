#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device_fixture.h"
#include "device_plan.h"
#include "engine/device_event.h"
#include "fake_cuda.h"
#include "test_agent.h"
#include "transport/bounce_transport.h"
#include "transport/p2p_transport.h"

namespace kvt::test {

// Pages of the stand-in's memory, and a forward step that ends when a test lets it.
class FakeDeviceTest : public DeviceTest {
 protected:
  static constexpr std::size_t kPage = 32 << 10;
  static constexpr std::size_t kPool = std::size_t{2} << 20;

  void SetUp() override {
    DeviceTest::SetUp();
    KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &forward_));
  }

  // An agent whose slices all go through a small arena.
  static TransportFactory bounced(std::shared_ptr<BounceGauges> gauges = nullptr) {
    return [gauges = std::move(gauges)](Status* error) -> std::unique_ptr<Transport> {
      const BounceOptions options{.arena_bytes = std::size_t{4} << 20,
                                  .max_chunk_bytes = std::size_t{1} << 20,
                                  .max_inflight_chunks = 4,
                                  .request_timeout = std::chrono::milliseconds(5000),
                                  .is_forced = true,
                                  .gauges = gauges};
      auto base = make_p2p_transport({.device = 0}, error);
      return base == nullptr ? nullptr : make_bounce_transport(std::move(base), options, error);
    };
  }

  // The end of what the forward's stream has queued; on that stream it never comes while the orders say `hold`.
  std::shared_ptr<DeviceEvent> forward_event() const {
    CudaEvent event;
    EXPECT_TRUE(CudaEvent::create(context_, EventTiming::kOff, &event).is_ok());
    EXPECT_TRUE(event.record(reinterpret_cast<std::uint64_t>(forward_.handle())).is_ok());
    return std::make_shared<DeviceEvent>(std::move(event));
  }

  // Every page to another place of the other pool.
  static PlacedPlan scattered(const Region& source, const Region& destination) {
    RandomPlan plan;
    const SlotPool pool{0, kPage, kPage, static_cast<std::int32_t>(source.size / kPage)};
    RandomPlan::Group group;
    group.fragments.push_back({.source = pool, .destination = pool, .bytes = kPage, .count = 1});
    for (std::int32_t i = 0; i < pool.slot_count; ++i) {
      group.slot_pairs.push_back(i);
      group.slot_pairs.push_back((i * 5 + 1) % pool.slot_count);
    }
    plan.groups.push_back(group);
    return PlacedPlan::place(plan, source.base, destination.base);
  }

  static void fill(const Region& region, unsigned char value) {
    std::memset(reinterpret_cast<void*>(region.base), value, region.size);
  }
  static bool is_filled(const Region& region, unsigned char value) {
    const auto* const bytes = reinterpret_cast<const volatile unsigned char*>(region.base);
    for (std::size_t i = 0; i < region.size; ++i) {
      if (bytes[i] != value) return false;
    }
    return true;
  }

  static void await(const std::string& what, const std::function<bool()>& is_so) {
    const auto until = std::chrono::steady_clock::now() + kTestLimit;
    while (!is_so()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "never came: " << what;
      std::this_thread::yield();
    }
  }
  // Until so many kernels more than `before` were queued.
  static void await_launches(std::uint64_t before, std::uint64_t count) {
    await("launch", [&] { return FakeCuda::calls("cuLaunchKernel") >= before + count; });
  }

  std::size_t free_bytes() const {
    const CurrentContext current(*context_);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_TRUE(api().check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo").is_ok());
    return free;
  }

  FakeCuda gpu_;
  CudaStream forward_;
};

}  // namespace kvt::test
