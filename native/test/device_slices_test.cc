// The engine's loop over a transport that takes slices whole. Needs no GPU.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/transfer_loop.h"

namespace kvt {
namespace {

class SliceTransport final : public Transport {
 public:
  Status open() override { return Status::ok(); }
  Status allocate_region(std::size_t, Region*) override { return Status::ok(); }
  Status metadata(std::vector<std::byte>*) override { return Status::ok(); }
  Status begin_add_peer(PeerId, std::span<const std::byte>) override { return Status::ok(); }
  PeerState poll_peer(PeerId, Status*) override { return PeerState::kReady; }
  void remove_peer(PeerId) override {}
  bool peer_owns(PeerId, std::uintptr_t, std::size_t) const override { return true; }
  std::vector<Region> peer_regions(PeerId) const override { return {}; }
  BatchLimits limits() const override { return {.max_runs = 1, .max_bytes = 1, .max_in_flight = max_in_flight}; }
  BatchResult post(BatchId, PeerId, std::span<const Run>) override {
    ADD_FAILURE() << "runs were posted";
    return {};
  }
  bool takes_slices() const override { return takes_whole; }
  SliceRoute route(PeerId, Ticket, std::span<const PlanGroup>) const override {
    return {.is_whole = takes_whole, .limits = limits(), .lane = 0, .device_waits = device_waits};
  }
  BatchResult post_slice(BatchId batch, PeerId, Ticket, std::span<const PlanGroup> groups,
                         const CudaEvent* after) override {
    posted.push_back({batch, groups.size(), groups.front().slot_pairs.size() / 2, after});
    return {next, false, next == BatchState::kFailed ? Status(StatusCode::kTransport, "broken") : Status()};
  }
  BatchResult poll(BatchId) override { return {polled, false, {}}; }
  void take_released(std::vector<BatchId>* out) override {
    out->insert(out->end(), released.begin(), released.end());
    released.clear();
  }
  void take_drained(std::vector<BatchId>*) override {}
  void progress() override {}
  std::optional<TimePoint> next_wakeup(TimePoint) const override { return std::nullopt; }
  bool close() override { return true; }

  struct Posted {
    BatchId batch;
    std::size_t groups;
    std::size_t pairs;
    const CudaEvent* after;
  };
  std::vector<Posted> posted;
  std::vector<BatchId> released;
  BatchState next = BatchState::kInFlight;
  BatchState polled = BatchState::kInFlight;
  std::size_t max_in_flight = 8;
  bool takes_whole = true;
  bool device_waits = true;
};

// An event of a device that is nowhere: only its address counts.
class ScriptedDeviceEvent final : public ReadyEvent {
 public:
  EventState state() const override { return now; }
  const Status& failure() const override { return why; }
  const CudaEvent* device_event() const override { return reinterpret_cast<const CudaEvent*>(this); }
  EventState now = EventState::kPending;
  Status why{StatusCode::kTransport, "the forward failed"};
};

class Slices : public testing::Test {
 protected:
  void SetUp() override {
    Fragment fragment;
    fragment.source = fragment.destination = {0x1000, 64, 64, 100};
    fragment.bytes = 64;
    fragment.count = 1;
    ASSERT_TRUE(FragmentTable::create({fragment}, &table_).is_ok());
    loop_.add_peer(1);
  }
  Submission submission(SubmissionId id, std::size_t pairs, std::shared_ptr<const ReadyEvent> after = nullptr) {
    std::vector<std::int32_t> slots;
    for (std::size_t i = 0; i < pairs; ++i) {
      slots.push_back(static_cast<std::int32_t>(i * 3 % 100));
      slots.push_back(static_cast<std::int32_t>(i * 7 % 100));
    }
    return {.id = id,
            .peer = 1,
            .flow = id,
            .groups = {{std::make_shared<FragmentTable>(table_), slots}},
            .after = std::move(after)};
  }
  Notice only_notice() {
    std::vector<Notice> notices = loop_.take_notices();
    EXPECT_EQ(notices.size(), 1U);
    return notices.empty() ? Notice{} : notices.front();
  }

  FragmentTable table_;
  SliceTransport transport_;
  TransferLoop loop_{&transport_};
};

TEST_F(Slices, AreOneBatchWhateverTheLimits) {
  loop_.submit(submission(1, 50));
  (void)loop_.step();
  ASSERT_EQ(transport_.posted.size(), 1U);
  EXPECT_EQ(transport_.posted[0].pairs, 50U);
  EXPECT_EQ(transport_.posted[0].after, nullptr);
  EXPECT_TRUE(loop_.has_in_flight());
  transport_.polled = BatchState::kDone;
  (void)loop_.step();
  const Notice notice = only_notice();
  EXPECT_EQ(notice.outcome, Outcome::kTransferred);
  EXPECT_EQ(notice.bytes, 50U * 64);
  EXPECT_EQ(loop_.unfinished(), 0U);
}

TEST_F(Slices, TellOfTheirSourceOnceBeforeTheyEnd) {
  loop_.submit(submission(1, 50));
  loop_.submit(submission(2, 50));
  (void)loop_.step();
  (void)loop_.step();
  ASSERT_EQ(transport_.posted.size(), 2U);
  // A batch that nobody knows changes nothing.
  transport_.released = {transport_.posted[1].batch, 999};
  (void)loop_.step();
  const Notice notice = only_notice();
  EXPECT_EQ(notice.kind, NoticeKind::kReleased);
  EXPECT_EQ(notice.submission, 2U);
  EXPECT_EQ(loop_.unfinished(), 2U);
  // One that ends in the same step says it by its end.
  transport_.released = {transport_.posted[0].batch};
  transport_.polled = BatchState::kDone;
  (void)loop_.step();
  const std::vector<Notice> notices = loop_.take_notices();
  ASSERT_EQ(notices.size(), 2U);
  EXPECT_EQ(notices[0].kind, NoticeKind::kCompletion);
  EXPECT_EQ(notices[1].kind, NoticeKind::kCompletion);
}

TEST_F(Slices, StayHereUntilTheirEventWhereTheDeviceCannotGiveThemBack) {
  transport_.device_waits = false;
  const auto event = std::make_shared<ScriptedDeviceEvent>();
  loop_.submit(submission(1, 2, event));
  loop_.submit(submission(2, 2, event));
  loop_.submit(submission(3, 2));
  while (loop_.step()) continue;
  ASSERT_EQ(transport_.posted.size(), 1U);
  EXPECT_TRUE(loop_.polls_events());
  loop_.cancel(2);
  const Notice cancelled = only_notice();
  EXPECT_EQ(cancelled.submission, 2U);
  EXPECT_EQ(cancelled.outcome, Outcome::kCancelled);
  EXPECT_TRUE(cancelled.drained);
  event->now = EventState::kReached;
  while (loop_.step()) continue;
  ASSERT_EQ(transport_.posted.size(), 2U);
  EXPECT_EQ(transport_.posted[1].after, nullptr);
}

TEST_F(Slices, GoToTheDeviceWithAnEventThatIsNotReached) {
  const auto event = std::make_shared<ScriptedDeviceEvent>();
  loop_.submit(submission(1, 2, event));
  (void)loop_.step();
  ASSERT_EQ(transport_.posted.size(), 1U);
  EXPECT_EQ(transport_.posted[0].after, event->device_event());
  EXPECT_FALSE(loop_.polls_events());
}

TEST_F(Slices, NeedNoWaitForAnEventThatIsReached) {
  const auto event = std::make_shared<ScriptedDeviceEvent>();
  event->now = EventState::kReached;
  loop_.submit(submission(1, 2, event));
  (void)loop_.step();
  ASSERT_EQ(transport_.posted.size(), 1U);
  EXPECT_EQ(transport_.posted[0].after, nullptr);
}

TEST_F(Slices, FailWithTheirEvent) {
  const auto event = std::make_shared<ScriptedDeviceEvent>();
  event->now = EventState::kFailed;
  loop_.submit(submission(1, 2, event));
  (void)loop_.step();
  EXPECT_TRUE(transport_.posted.empty());
  const Notice notice = only_notice();
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_NE(notice.error.message().find("the forward failed"), std::string::npos);
}

TEST_F(Slices, WithoutABytePassAtOnce) {
  loop_.submit(submission(1, 0));
  (void)loop_.step();
  EXPECT_TRUE(transport_.posted.empty());
  EXPECT_EQ(only_notice().outcome, Outcome::kTransferred);
}

TEST_F(Slices, ThatFailAtPostSettleOnce) {
  transport_.next = BatchState::kFailed;
  loop_.submit(submission(1, 2));
  (void)loop_.step();
  const Notice notice = only_notice();
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  (void)loop_.step();
  EXPECT_TRUE(loop_.take_notices().empty());
}

TEST_F(Slices, BeyondTheLimitOfAPeerWait) {
  transport_.max_in_flight = 2;
  TransferLoop loop(&transport_);
  loop.add_peer(1);
  for (SubmissionId id = 1; id <= 4; ++id) loop.submit(submission(id, 1));
  while (loop.step()) {
  }
  EXPECT_EQ(transport_.posted.size(), 2U);
  transport_.polled = BatchState::kDone;
  for (int i = 0; i < 8; ++i) (void)loop.step();
  EXPECT_EQ(transport_.posted.size(), 4U);
  EXPECT_EQ(loop.take_notices().size(), 4U);
}

TEST_F(Slices, AreCancelledOnlyBeforeTheyArePosted) {
  loop_.submit(submission(1, 1));
  (void)loop_.step();
  loop_.cancel(1);
  EXPECT_TRUE(loop_.take_notices().empty());
  loop_.submit(submission(2, 1));
  loop_.cancel(2);
  EXPECT_EQ(only_notice().outcome, Outcome::kCancelled);
}

// A transport of runs cannot make the device wait: the thread asks for the event until it is reached.
TEST_F(Slices, EventsOfADeviceArePolledForTransportsOfRuns) {
  transport_.takes_whole = false;
  TransferLoop loop(&transport_);
  loop.add_peer(1);
  const auto event = std::make_shared<ScriptedDeviceEvent>();
  loop.submit(submission(1, 0, event));
  (void)loop.step();
  EXPECT_TRUE(loop.polls_events());
  EXPECT_TRUE(loop.take_notices().empty());
  event->now = EventState::kReached;
  (void)loop.step();
  EXPECT_FALSE(loop.polls_events());
  EXPECT_EQ(loop.take_notices().size(), 1U);
}

}  // namespace
}  // namespace kvt
