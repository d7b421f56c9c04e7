// Two agents of one process move pages between their GPUs (or within the one there is). Needs a GPU.
#include <gtest/gtest.h>

#include <random>

#include "device/kernel_reference.h"
#include "device_fixture.h"
#include "device_plan.h"
#include "engine/device_event.h"
#include "test_agent.h"
#include "transport/p2p_metadata.h"
#include "transport/p2p_transport.h"

namespace kvt {
namespace {

class P2p : public DeviceTest {
 protected:
  static constexpr std::size_t kPool = std::size_t{64} << 20;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    // Across two GPUs where there are two.
    receiver_device_ = probe_cuda().device_count > 1 ? 1 : 0;
    std::shared_ptr<const CudaContext> receiver_context;
    KVT_ASSERT_OK(CudaContext::retain(receiver_device_, &receiver_context));
    KVT_ASSERT_OK(CudaStream::create(receiver_context, StreamPriority::kLow, &receiver_stream_));
    writer_ = std::make_unique<TestAgent>("writer", p2p_on(0));
    receiver_ = std::make_unique<TestAgent>("receiver", p2p_on(receiver_device_));
    KVT_ASSERT_OK(writer_->opening());
    KVT_ASSERT_OK(receiver_->opening());
    KVT_ASSERT_OK(writer_->allocate(kPool, &source_));
    KVT_ASSERT_OK(receiver_->allocate(kPool, &destination_));
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata()));
  }

  Submission submission(SubmissionId id, const PlacedPlan& plan, std::shared_ptr<const ReadyEvent> after = nullptr) {
    return {.id = id, .peer = 1, .flow = id % 3, .groups = plan.groups, .after = std::move(after)};
  }

  // A forward that takes some milliseconds, and the event behind it.
  std::shared_ptr<DeviceEvent> busy_event(const CudaStream& stream, const DevicePool& scratch, int rounds) {
    {
      const CurrentContext current(*context_);
      for (int i = 0; i < rounds; ++i) {
        (void)api().cuMemsetD8Async(scratch.base(), 1, scratch.size(), stream.handle());
      }
    }
    CudaEvent event;
    EXPECT_TRUE(CudaEvent::create(context_, EventTiming::kOff, &event).is_ok());
    EXPECT_TRUE(event.record(reinterpret_cast<std::uint64_t>(stream.handle())).is_ok());
    return std::make_shared<DeviceEvent>(std::move(event));
  }

  static std::vector<std::byte> noise(std::size_t bytes, std::uint32_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> out(bytes / 8 * 8 + 8);
    for (std::size_t i = 0; i < out.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(out.data() + i, &word, 8);
    }
    out.resize(bytes);
    return out;
  }

  int receiver_device_ = 0;
  CudaStream receiver_stream_;
  Region source_, destination_;
  std::unique_ptr<TestAgent> writer_, receiver_;
};

TEST_F(P2p, SlicesOfAnyShapeArriveWholeAndTouchNothingElse) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    PlanGenerator generator(seed, {.max_groups = 11, .alignment = seed % 2 == 0 ? 16UL : 1UL});
    const RandomPlan plan = generator.next();
    const std::vector<std::byte> source = noise(plan.source_bytes + 64, seed);
    std::vector<std::byte> expected(plan.destination_bytes + 64, std::byte{0xa7});
    upload(source_.base, source);
    upload(destination_.base, expected, &receiver_stream_);
    PlacedPlan placed = PlacedPlan::place(plan, source_.base, destination_.base);
    writer_->submit(submission(seed, placed));
    const Notice notice = writer_->settled(seed);
    ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
    EXPECT_TRUE(notice.drained);

    const PlacedPlan on_host = PlacedPlan::place(plan, reinterpret_cast<std::uintptr_t>(source.data()),
                                                 reinterpret_cast<std::uintptr_t>(expected.data()));
    std::uint64_t bytes = 0;
    for (const PlanGroup& group : on_host.groups) {
      bytes += std::uint64_t{group.table->bytes_per_pair()} * (group.slot_pairs.size() / 2);
    }
    EXPECT_EQ(notice.bytes, bytes);
    for (const CopyPart& part : on_host.parts()) {
      CopyArguments arguments{};
      KVT_ASSERT_OK(make_copy_arguments(std::span(&part, 1), &arguments));
      reference_copy(arguments);
    }
    ASSERT_EQ(download(destination_.base, expected.size(), &receiver_stream_), expected) << "seed " << seed;
  }
}

PlacedPlan whole_pool(const Region& source, const Region& destination, bool is_scattered) {
  RandomPlan plan;
  constexpr std::size_t kPage = 32 << 10;
  const SlotPool pool{0, kPage, kPage, static_cast<std::int32_t>(source.size / kPage)};
  RandomPlan::Group group;
  group.fragments.push_back({.source = pool, .destination = pool, .bytes = kPage, .count = 1});
  for (std::int32_t i = 0; i < pool.slot_count; ++i) {
    group.slot_pairs.push_back(i);
    group.slot_pairs.push_back(is_scattered ? (i * 5 + 1) % pool.slot_count : i);
  }
  plan.groups.push_back(group);
  return PlacedPlan::place(plan, source.base, destination.base);
}

// More than the two lanes take at once, so that slices begin while others end, with all blocks and with halves of them.
TEST_F(P2p, SlicesUnderWayTogetherArriveWhole) {
  constexpr std::size_t kSlices = 48;
  constexpr std::size_t kBytes = kPool / 64;
  const std::vector<std::byte> source = noise(kPool, 5);
  upload(source_.base, source);
  std::vector<std::byte> expected(kPool, std::byte{0xa7});
  for (int round = 0; round < 3; ++round) {
    upload(destination_.base, std::vector<std::byte>(kPool, std::byte{0xa7}), &receiver_stream_);
    const auto id_of = [&](std::size_t i) { return 1 + static_cast<SubmissionId>(round) * kSlices + i; };
    for (std::size_t i = 0; i < kSlices; ++i) {
      const Region from{source_.base + i * kBytes, kBytes, MemoryKind::kDevice, 0};
      const Region to{destination_.base + i * kBytes, kBytes, MemoryKind::kDevice, receiver_device_};
      const PlacedPlan plan = whole_pool(from, to, true);
      writer_->submit(submission(id_of(i), plan));
      if (round > 0) continue;
      constexpr std::size_t kPage = 32 << 10;
      for (std::size_t page = 0; page < kBytes / kPage; ++page) {
        const std::size_t at = i * kBytes + (page * 5 + 1) % (kBytes / kPage) * kPage;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(i * kBytes + page * kPage), kPage,
                    expected.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (std::size_t i = 0; i < kSlices; ++i) {
      const Notice notice = writer_->settled(id_of(i));
      ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
    }
    ASSERT_EQ(download(destination_.base, kPool, &receiver_stream_), expected) << "round " << round;
  }
}

TEST_F(P2p, LongRunsArriveToo) {
  const std::vector<std::byte> source = noise(kPool, 3);
  upload(source_.base, source);
  writer_->submit(submission(1, whole_pool(source_, destination_, false)));
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  EXPECT_EQ(download(destination_.base, kPool, &receiver_stream_), source);
}

TEST_F(P2p, LongRunsThatAreTakenBackEndWithWhatTheEnginesHaveQueued) {
  constexpr SubmissionId kSlices = 60;  // 4 GiB: far more than is ever queued
  upload(source_.base, std::vector<std::byte>(kPool, std::byte{0x33}));
  const PlacedPlan contiguous = whole_pool(source_, destination_, false);
  for (SubmissionId id = 1; id <= kSlices; ++id) writer_->submit(submission(id, contiguous));
  for (SubmissionId id = 1; id <= kSlices; ++id) writer_->cancel(id);
  std::size_t cancelled = 0;
  for (SubmissionId id = 1; id <= kSlices; ++id) {
    const Notice notice = writer_->settled(id);
    EXPECT_TRUE(notice.drained);
    if (notice.outcome == Outcome::kCancelled) ++cancelled;
  }
  EXPECT_GT(cancelled, kSlices / 2);
  // Whatever was queued has landed: nothing comes after it.
  const std::vector<std::byte> canary(kPool, std::byte{0xc7});
  upload(destination_.base, canary, &receiver_stream_);
  writer_->submit(
      submission(kSlices + 1, whole_pool({source_.base, kPool / 4}, {destination_.base, kPool / 4}, false)));
  ASSERT_EQ(writer_->settled(kSlices + 1).outcome, Outcome::kTransferred);
  std::vector<std::byte> expected = canary;
  std::fill_n(expected.begin(), kPool / 4, std::byte{0x33});
  EXPECT_EQ(download(destination_.base, kPool, &receiver_stream_), expected);
}

TEST_F(P2p, TheCopyBeginsWhenTheEventIsReachedAndNotBefore) {
  CudaStream forward;
  KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &forward));
  const auto scratch = pool(std::size_t{2} << 30);
  upload(source_.base, std::vector<std::byte>(kPool, std::byte{0x33}));
  // The forward writes the pages last: what arrives shows whether the copy waited.
  const auto slow = [&] {
    const auto before = busy_event(forward, *scratch, 20);
    const CurrentContext current(*context_);
    (void)api().cuMemsetD8Async(source_.base, 0x44, kPool, forward.handle());
    return busy_event(forward, *scratch, 0);
  };
  const auto event = slow();
  writer_->submit(submission(1, whole_pool(source_, destination_, true), event));
  const Notice first = writer_->settled(1);
  ASSERT_EQ(first.outcome, Outcome::kTransferred) << first.error.message();
  EXPECT_EQ(event->state(), EventState::kReached);
  EXPECT_EQ(download(destination_.base, kPool, &receiver_stream_), std::vector<std::byte>(kPool, std::byte{0x44}));
}

TEST_F(P2p, WhatWaitsForAnEventHoldsUpNobodyElse) {
  CudaStream forward;
  KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &forward));
  const auto scratch = pool(std::size_t{4} << 30);
  const PlacedPlan plan = whole_pool(source_, destination_, true);
  writer_->submit(submission(1, plan));  // makes the tables
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  const auto event = busy_event(forward, *scratch, 60);
  writer_->submit(submission(2, plan, event));
  writer_->submit(submission(3, plan));
  EXPECT_EQ(writer_->settled(3).outcome, Outcome::kTransferred);
  EXPECT_FALSE(writer_->has_settled(2));
  EXPECT_EQ(writer_->settled(2).outcome, Outcome::kTransferred);
}

TEST_F(P2p, WhatWasTakenBackBehindAnEventIsFreeAtOnceAndNeverLands) {
  CudaStream forward;
  KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &forward));
  const auto scratch = pool(std::size_t{2} << 30);
  const PlacedPlan scattered = whole_pool(source_, destination_, true);
  const PlacedPlan contiguous = whole_pool(source_, destination_, false);
  upload(source_.base, std::vector<std::byte>(kPool, std::byte{0x33}));
  writer_->submit(submission(1, scattered));  // makes the tables
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  for (SubmissionId id = 2; id < 12; id += 2) {
    const auto event = busy_event(forward, *scratch, 200);
    // Long runs go by the copy engines, which are given nothing before the event.
    writer_->submit(submission(id, id % 4 == 0 ? contiguous : scattered, event));
    writer_->submit(submission(id + 1, scattered, event));
    writer_->cancel(id);
    writer_->cancel(id + 1);
    for (const SubmissionId one : {id, id + 1}) {
      const Notice notice = writer_->settled(one);
      EXPECT_EQ(notice.outcome, Outcome::kCancelled) << notice.error.message();
      EXPECT_TRUE(notice.drained);
    }
    // The pages are the receiver's again before the forward has ended.
    const std::vector<std::byte> canary(kPool, static_cast<std::byte>(0xc0 + id));
    upload(destination_.base, canary, &receiver_stream_);
    ASSERT_EQ(event->state(), EventState::kPending) << "the forward was too short to show anything";
    KVT_ASSERT_OK(forward.synchronize());
    // In order behind what was taken back: once this has arrived, the device has passed it.
    writer_->submit(
        submission(100 + id, whole_pool({source_.base, 32 << 10}, {destination_.base, 32 << 10}, false), event));
    ASSERT_EQ(writer_->settled(100 + id).outcome, Outcome::kTransferred);
    std::vector<std::byte> expected = canary;
    std::fill_n(expected.begin(), 32 << 10, std::byte{0x33});
    ASSERT_EQ(download(destination_.base, kPool, &receiver_stream_), expected);
  }
}

TEST_F(P2p, AnAgentClosesWhileTheDeviceHasQueuedWhatWasTakenBack) {
  CudaStream forward;
  KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kHigh, &forward));
  const auto scratch = pool(std::size_t{2} << 30);
  const PlacedPlan plan = whole_pool(source_, destination_, true);
  const auto event = busy_event(forward, *scratch, 60);
  writer_->submit(submission(1, plan, event));
  writer_->cancel(1);
  EXPECT_EQ(writer_->settled(1).outcome, Outcome::kCancelled);
  // Freeing the pools may wait for the forward; nothing that was taken back does.
  const CloseReport report = writer_->close();
  EXPECT_TRUE(report.drained);
  KVT_ASSERT_OK(forward.synchronize());
  const std::vector<std::byte> zero(kPool);
  EXPECT_EQ(download(destination_.base, kPool, &receiver_stream_), zero);
}

TEST_F(P2p, EnginesMemoryIsRegisteredAndWrittenFrom) {
  DeviceBuffer engine_memory;
  KVT_ASSERT_OK(DeviceBuffer::create(context_, (std::size_t{4} << 20) + 8192, &engine_memory));
  const Region region{engine_memory.device() + 4096, std::size_t{4} << 20, MemoryKind::kDevice, 0};
  KVT_ASSERT_OK(writer_->register_region(region));
  const std::vector<std::byte> source = noise(region.size, 8);
  upload(region.base, source);
  Region into = destination_;
  into.size = region.size;
  writer_->submit(submission(1, whole_pool(region, into, false)));
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  EXPECT_EQ(download(destination_.base, region.size, &receiver_stream_), source);

  EXPECT_EQ(writer_->register_region({1 << 20, 4096, MemoryKind::kDevice, 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer_->register_region({region.base, 4096, MemoryKind::kHost, -1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer_->register_region(region).code(), StatusCode::kInvalidArgument);  // overlaps itself
  writer_.reset();                                                                   // before the memory
}

TEST_F(P2p, PoolsThatNobodyRegisteredAreRefusedBeforeAnythingMoves) {
  upload(destination_.base, std::vector<std::byte>(4096, std::byte{0x77}), &receiver_stream_);
  Region beyond = destination_;
  beyond.size += std::size_t{1} << 20;
  const Region wide{source_.base, beyond.size, MemoryKind::kDevice, 0};
  writer_->submit(submission(1, whole_pool(wide, beyond, true)));
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_EQ(notice.error.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(notice.drained);
  EXPECT_EQ(download(destination_.base, 4096, &receiver_stream_), std::vector<std::byte>(4096, std::byte{0x77}));
}

TEST_F(P2p, APeerThatClosedIsLostAndTheAgentGoesOn) {
  const PlacedPlan plan = whole_pool(source_, destination_, true);
  writer_->submit(submission(1, plan));
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  receiver_.reset();
  writer_->submit(submission(2, plan));
  const Notice notice = writer_->settled(2);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_EQ(notice.error.code(), StatusCode::kPeerLost) << notice.error.message();
  EXPECT_TRUE(notice.drained);

  TestAgent next("next", p2p_on(receiver_device_));
  Region again;
  KVT_ASSERT_OK(next.allocate(kPool, &again));
  KVT_ASSERT_OK(writer_->add_peer(2, next.metadata()));
  Submission third = submission(3, whole_pool(source_, again, true));
  third.peer = 2;
  writer_->submit(std::move(third));
  EXPECT_EQ(writer_->settled(3).outcome, Outcome::kTransferred);
}

TEST_F(P2p, MetadataOfAnythingElseIsRefused) {
  const std::vector<std::byte> good = receiver_->metadata();
  for (std::size_t length = 0; length < good.size(); length += 7) {
    P2pMetadata decoded;
    EXPECT_FALSE(decode_p2p_metadata(std::span(good).first(length), &decoded).is_ok());
  }
  std::vector<std::byte> other = good;
  other[16] ^= std::byte{1};  // another machine
  EXPECT_EQ(writer_->add_peer(5, other).code(), StatusCode::kCapability);
  other = good;
  other[32] ^= std::byte{1};  // another token
  EXPECT_FALSE(writer_->add_peer(6, other).is_ok());
}

TEST_F(P2p, ManySlicesInARowLeaveMemoryFlat) {
  const auto free_bytes = [&] {
    const CurrentContext current(*context_);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_TRUE(api().check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo").is_ok());
    return free;
  };
  PlanGenerator generator(7, {.max_groups = 1, .max_pairs = 30});
  std::vector<PlacedPlan> plans;
  for (int i = 0; i < 8; ++i) plans.push_back(PlacedPlan::place(generator.next(), source_.base, destination_.base));
  std::size_t before = 0;
  for (SubmissionId id = 1; id <= 20'000; ++id) {
    writer_->submit(submission(id, plans[id % plans.size()]));
    if (id % 7 == 0) writer_->cancel(id);
    if (id % 64 == 0) (void)writer_->settled(id);
    if (id == 2'000) before = free_bytes();
  }
  const Notice last = writer_->settled(20'000);
  EXPECT_NE(last.outcome, Outcome::kFailed) << last.error.message();
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace kvt
