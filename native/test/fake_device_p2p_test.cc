// The p2p path over a stand-in for the driver: what becomes of slices whose forward fails, whose device is lost or
// full, and whose peer goes. Needs no GPU.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_device_fixture.h"
#include "transport/p2p_metadata.h"

namespace kvt::test {
namespace {

class FakeP2p : public FakeDeviceTest {
 protected:
  void SetUp() override {
    FakeDeviceTest::SetUp();
    KVT_ASSERT_OK(writer_->opening());
    KVT_ASSERT_OK(receiver_->opening());
    KVT_ASSERT_OK(writer_->allocate(kPool, &source_));
    KVT_ASSERT_OK(receiver_->allocate(kPool, &destination_));
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata()));
    plan_ = scattered(source_, destination_);
    fill(source_, 0x33);
    fill(destination_, 0x77);
  }

  Submission slice(SubmissionId id, std::shared_ptr<const ReadyEvent> after = nullptr) const {
    return {.id = id, .peer = 1, .flow = id, .groups = plan_.groups, .after = std::move(after)};
  }

  void expect_failed_forward(SubmissionId id) {
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kFailed);
    EXPECT_EQ(notice.bytes, 0U);
    EXPECT_TRUE(notice.drained);
    EXPECT_EQ(notice.error.code(), StatusCode::kTransport);
    EXPECT_NE(notice.error.message().find("the forward step failed"), std::string::npos) << notice.error.message();
  }

  std::unique_ptr<TestAgent> writer_ = std::make_unique<TestAgent>("writer", p2p_on(0));
  std::unique_ptr<TestAgent> receiver_ = std::make_unique<TestAgent>("receiver", p2p_on(0));
  Region source_, destination_;
  PlacedPlan plan_;
};

TEST_F(FakeP2p, PagesMove) {
  writer_->submit(slice(1));
  const Notice notice = writer_->settled(1);
  ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
  EXPECT_EQ(notice.bytes, kPool);
  EXPECT_TRUE(is_filled(destination_, 0x33));
}

TEST_F(FakeP2p, WhatIsQueuedBehindAForwardThatFailsIsTakenBack) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(slice(1, event));
  writer_->submit(slice(2, event));
  await_launches(before, 2);
  event->fail("the forward step failed");
  writer_->events_changed();
  expect_failed_forward(1);
  expect_failed_forward(2);
  // The device passes what was taken back and touches nothing.
  FakeCuda::order({});
  KVT_ASSERT_OK(forward_.synchronize());
  const std::uint64_t launched = FakeCuda::calls("cuLaunchKernel");
  Submission last = slice(3, forward_event());
  last.groups = scattered({source_.base, kPage}, {destination_.base, kPage}).groups;
  writer_->submit(std::move(last));
  ASSERT_EQ(writer_->settled(3).outcome, Outcome::kTransferred);
  EXPECT_EQ(FakeCuda::calls("cuLaunchKernel"), launched + 1);
  EXPECT_TRUE(is_filled({destination_.base, kPage}, 0x33));
  EXPECT_TRUE(is_filled({destination_.base + kPage, kPool - kPage}, 0x77));
}

TEST_F(FakeP2p, ACopyThatRanBeforeTheForwardWasFailedDoesNotCount) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(slice(1, event));
  await_launches(before, 1);
  FakeCuda::order({"hide"});
  await("the copy", [&] { return is_filled(destination_, 0x33); });
  event->fail("the forward step failed");
  EXPECT_EQ(event->state(), EventState::kFailed);
  FakeCuda::order({});
  expect_failed_forward(1);
  EXPECT_EQ(writer_->close().drained, true);
}

TEST_F(FakeP2p, AForwardThatWasSeenToEndCannotFailAnyMore) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(slice(1, event));
  await_launches(before, 1);
  FakeCuda::order({});
  ASSERT_EQ(writer_->settled(1).outcome, Outcome::kTransferred);
  event->fail("the forward step failed");
  writer_->submit(slice(2, event));
  EXPECT_EQ(writer_->settled(2).outcome, Outcome::kTransferred);
}

TEST_F(FakeP2p, ALostDeviceFailsWhatItHasAndTheMemoryStays) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(slice(1, event));
  writer_->submit(slice(2));
  await_launches(before, 2);
  FakeCuda::order({"hold", "lost"});
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_FALSE(notice.drained);
  EXPECT_NE(notice.error.message().find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << notice.error.message();
  writer_->submit(slice(3));
  EXPECT_EQ(writer_->settled(3).outcome, Outcome::kFailed);
  EXPECT_FALSE(writer_->close(std::chrono::milliseconds(50)).drained);
  FakeCuda::order({});
}

TEST_F(FakeP2p, ADeviceThatIsFullFailsTheSliceAndGoesOnOnceItIsNot) {
  FakeCuda::order({"fail cuMemAlloc 2"});
  writer_->submit(slice(1));
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_EQ(notice.error.code(), StatusCode::kResource) << notice.error.message();
  EXPECT_TRUE(notice.drained);
  EXPECT_EQ(notice.bytes, 0U);
  EXPECT_TRUE(is_filled(destination_, 0x77));
  FakeCuda::order({});
  writer_->submit(slice(2));
  EXPECT_EQ(writer_->settled(2).outcome, Outcome::kTransferred);
}

TEST_F(FakeP2p, ManySlicesAndFailedForwardsLeaveMemoryFlat) {
  std::size_t before = 0;
  for (SubmissionId id = 1; id <= 400; ++id) {
    const bool fails = id % 3 == 0;
    FakeCuda::order({"hold"});
    const auto event = forward_event();
    writer_->submit(slice(id, event));
    if (fails) event->fail("the forward step failed");
    FakeCuda::order({});
    EXPECT_EQ(writer_->settled(id).outcome, fails ? Outcome::kFailed : Outcome::kTransferred) << id;
    if (id == 100) before = free_bytes();
  }
  // How many slot buffers exist depends on how far the device lags behind; each of the 300 slices would take one more.
  EXPECT_NEAR(static_cast<double>(free_bytes()), static_cast<double>(before), 64 << 10);
}

// A receiver in a process of its own, whose pool is mapped and not merely known.
class FakeP2pProcesses : public FakeDeviceTest {
 protected:
  void SetUp() override {
    int metadata[2];
    int life[2];
    ASSERT_EQ(::pipe(metadata), 0);
    ASSERT_EQ(::pipe(life), 0);
    // Before this process has threads.
    child_ = ::fork();
    if (child_ == 0) {
      ::close(life[1]);
      serve(metadata[1], life[0]);
      ::_exit(0);
    }
    ::close(life[0]);
    ::close(metadata[1]);
    life_.reset(life[1]);
    std::uint64_t size = 0;
    ASSERT_EQ(::read(metadata[0], &size, sizeof size), static_cast<ssize_t>(sizeof size));
    metadata_.resize(size);
    ASSERT_EQ(::read(metadata[0], metadata_.data(), size), static_cast<ssize_t>(size));
    ::close(metadata[0]);
    FakeDeviceTest::SetUp();
  }
  void TearDown() override {
    life_.reset();
    ::waitpid(child_, nullptr, 0);
  }

  static void serve(int to, int life) {
    TestAgent receiver("receiver", p2p_on(0));
    Region pool;
    (void)!receiver.allocate(kPool, &pool).is_ok();
    const std::vector<std::byte> metadata = receiver.metadata();
    const std::uint64_t size = metadata.size();
    (void)!::write(to, &size, sizeof size);
    (void)!::write(to, metadata.data(), size);
    char end = 0;
    (void)!::read(life, &end, 1);
  }

  pid_t child_ = -1;
  UniqueFd life_;
  std::vector<std::byte> metadata_;
};

TEST_F(FakeP2pProcesses, MappingsGoWithTheirPeer) {
  TestAgent writer("writer", p2p_on(0));
  KVT_ASSERT_OK(writer.opening());
  Region source;
  KVT_ASSERT_OK(writer.allocate(kPool, &source));
  P2pMetadata published;
  KVT_ASSERT_OK(decode_p2p_metadata(metadata_, &published));
  for (PeerId peer = 1; peer <= 3; ++peer) {
    const std::uint64_t mapped = FakeCuda::calls("cuMemMap");
    const std::uint64_t unmapped = FakeCuda::calls("cuMemUnmap");
    KVT_ASSERT_OK(writer.add_peer(peer, metadata_));
    EXPECT_EQ(FakeCuda::calls("cuMemMap"), mapped + 1);
    const Region destination{published.regions.at(0).base, kPool, MemoryKind::kDevice, -1};
    writer.submit({.id = peer, .peer = peer, .flow = 1, .groups = scattered(source, destination).groups, .after = {}});
    const Notice notice = writer.settled(peer);
    EXPECT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
    writer.remove_peer(peer);
    EXPECT_EQ(FakeCuda::calls("cuMemUnmap"), unmapped + 1);
  }
}

}  // namespace
}  // namespace kvt::test
