// What tells a slow path from a fast one: probes of new peers, and what is sent later.
#include "transport/nixl_speed.h"

#include <gtest/gtest.h>

#include "fake_transport.h"
#include "transport/nixl_probe.h"

namespace kvt::nixl {
namespace {

using namespace std::chrono_literals;
using test::FakeTransport;

constexpr PeerId kPeer = 3;

std::vector<std::string> advice_of(SpeedWatch* speed) {
  std::vector<std::string> out;
  speed->take_advice(&out);
  return out;
}

class Speed : public testing::Test {
 protected:
  void SetUp() override {
    speed_.add_peer(kPeer, "gen-1");
    speed_.set_copy_rate(10e3);
  }

  // `count` batches one after the other, each of `runs` runs of `run_bytes` bytes, at a rate beside what runs cost.
  void send(int count, std::size_t runs, std::size_t run_bytes, double bytes_per_us,
            MemoryKind kind = MemoryKind::kHost) {
    const std::size_t bytes = runs * run_bytes;
    for (int i = 0; i < count; ++i) {
      speed_.began(kPeer, kind, now_);
      now_ += std::chrono::nanoseconds(static_cast<std::int64_t>(1e3 * static_cast<double>(bytes) / bytes_per_us)) +
              runs * 4us;
      speed_.ended(kPeer, kind, bytes, runs, now_);
      now_ += 1ms;  // nothing is under way
    }
  }

  SpeedWatch speed_;
  TimePoint now_{};
};

TEST_F(Speed, ASlowPathIsToldOnceWithPeerRateAndRemedy) {
  send(400, 64, 32 << 10, 900);
  const std::vector<std::string> advice = advice_of(&speed_);
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("peer gen-1"), std::string::npos) << advice[0];
  EXPECT_NE(advice[0].find("host memory to it at 0.9 GB/s"), std::string::npos) << advice[0];
  EXPECT_NE(advice[0].find("UCX_TLS"), std::string::npos) << advice[0];
  send(400, 64, 32 << 10, 900);
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Speed, SmallPagesOfAGpuAreJudgedToo) {
  send(100, 64, 32 << 10, 1.5e3, MemoryKind::kDevice);
  ASSERT_EQ(advice_of(&speed_).size(), 0U) << "not before there is enough to tell";
  send(100, 64, 32 << 10, 1.5e3, MemoryKind::kDevice);
  EXPECT_EQ(advice_of(&speed_).size(), 1U);
}

TEST_F(Speed, WhatDescriptorsCostIsNoDetour) {
  send(2000, 128, 4 << 10, 8e3);
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Speed, OneFastWindowOfManyIsEnough) {
  for (int i = 0; i < 40; ++i) {
    send(14, 64, 32 << 10, 500);
    send(4, 64, 32 << 10, 8e3);
  }
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Speed, BatchesSideBySideCountTogether) {
  for (int i = 0; i < 400; ++i) {
    for (int k = 0; k < 4; ++k) speed_.began(kPeer, MemoryKind::kHost, now_);
    now_ += 800us;
    // 8 MiB in 800 us: fast, though each alone took as long.
    for (int k = 0; k < 4; ++k) speed_.ended(kPeer, MemoryKind::kHost, 2 << 20, 1, now_);
  }
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Speed, FailedBatchesTellNothing) {
  for (int i = 0; i < 400; ++i) {
    send(1, 64, 32 << 10, 8e3);
    speed_.began(kPeer, MemoryKind::kHost, now_);
    now_ += 1s;
    speed_.ended(kPeer, MemoryKind::kHost, 0, 64, now_);
  }
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Speed, SharedMemoryIsMeasuredAgainstACopy) {
  EXPECT_EQ(speed_.slow_below(MemoryKind::kHost), 2.5e3);
  EXPECT_EQ(speed_.slow_below(MemoryKind::kDevice), 4e3);
  speed_.set_copy_rate(100e3);
  EXPECT_EQ(speed_.slow_below(MemoryKind::kHost), 4e3);
}

class Probes : public Speed {
 protected:
  void SetUp() override {
    Speed::SetUp();
    Region own;
    ASSERT_TRUE(memory_.allocate(MemoryKind::kHost, -1, &own).is_ok());
    EXPECT_GT(memory_.copy_rate(), 0);
    probes_.plan(kPeer, memory_, {{0x5000, own.size}});
  }
  void TearDown() override { memory_.free(MemoryKind::kHost); }

  FakeTransport transport_;
  ProbeMemory memory_;
  PeerProbes probes_{&transport_};
};

TEST_F(Probes, WritesThatEndAtOnceAreFewAndTellNothing) {
  speed_.set_copy_rate(1);  // whatever this machine does meanwhile is fast
  transport_.post_result = BatchResult{BatchState::kDone, false, {}};
  EXPECT_TRUE(probes_.run(kPeer, &speed_));
  EXPECT_EQ(transport_.posted.size(), 3U);
  for (const test::PostedBatch& batch : transport_.posted) {
    EXPECT_TRUE(PeerProbes::is_probe(batch.id));
    ASSERT_EQ(batch.runs.size(), 1U);
    EXPECT_EQ(batch.runs[0].destination, 0x5000U);
    EXPECT_EQ(batch.runs[0].source, memory_.find(MemoryKind::kHost)->base);
  }
  EXPECT_TRUE(advice_of(&speed_).empty());
  EXPECT_NE(speed_.measured(kPeer, MemoryKind::kHost).find("GB/s by a probe"), std::string::npos);
  EXPECT_TRUE(probes_.is_idle());
}

TEST_F(Probes, SlowWritesAreToldOfAndThePeerIsReadyAllTheSame) {
  speed_.set_copy_rate(1e9);
  while (!probes_.run(kPeer, &speed_)) {
    const auto until = std::chrono::steady_clock::now() + 2ms;
    while (std::chrono::steady_clock::now() < until) {
    }
    transport_.finish(transport_.posted.back().id);
  }
  EXPECT_LE(transport_.posted.size(), 8U);
  const std::vector<std::string> advice = advice_of(&speed_);
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("a probe with writes of 512 KiB"), std::string::npos) << advice[0];
}

TEST_F(Probes, APeerThatAnswersNothingIsReadyInTimeAndItsWriteStillEnds) {
  const auto start = std::chrono::steady_clock::now();
  while (!probes_.run(kPeer, &speed_)) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, 5s);
  }
  EXPECT_EQ(transport_.posted.size(), 1U);
  EXPECT_FALSE(probes_.is_idle());
  probes_.poll_dropped();
  EXPECT_FALSE(probes_.is_idle());
  transport_.finish(transport_.posted[0].id);
  probes_.poll_dropped();
  EXPECT_TRUE(probes_.is_idle());
  EXPECT_TRUE(advice_of(&speed_).empty());
}

TEST_F(Probes, AFailedWriteEndsThem) {
  transport_.post_result = BatchResult{BatchState::kFailed, true, Status(StatusCode::kTransport, "broken")};
  EXPECT_TRUE(probes_.run(kPeer, &speed_));
  EXPECT_TRUE(probes_.run(kPeer, &speed_));
  EXPECT_EQ(transport_.posted.size(), 1U);
  ASSERT_EQ(advice_of(&speed_).size(), 1U);
}

TEST_F(Probes, APeerWithoutMemoryForThemHasNone) {
  probes_.plan(4, memory_, {});
  probes_.plan(5, memory_, {{0x5000, 4096, MemoryKind::kDevice, 0}});
  EXPECT_TRUE(probes_.run(4, &speed_));
  EXPECT_TRUE(probes_.run(5, &speed_));
  EXPECT_TRUE(transport_.posted.empty());
}

}  // namespace
}  // namespace kvt::nixl
