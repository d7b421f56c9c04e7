#include "engine/agent_engine.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "test/fake_transport.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;
using test::FakeTransport;
using test::submission_of;

// Notices as they come, awaited by count.
class NoticeBox {
 public:
  void add(std::vector<Notice> batch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Notice& notice : batch) notices_.push_back(std::move(notice));
    condition_.notify_all();
  }
  std::vector<Notice> wait_for(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(condition_.wait_for(lock, 5s, [&] { return notices_.size() >= count; })) << notices_.size();
    return notices_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::vector<Notice> notices_;
};

class AgentEngineTest : public testing::Test {
 protected:
  void start(std::function<void(FakeTransport*)> prepare = [](FakeTransport*) {}) {
    std::promise<Status> opened;
    const Status started = AgentEngine::start(
        "kvt-test-of-a-long-name",
        [this, prepare](Status*) {
          auto transport = std::make_unique<FakeTransport>();
          prepare(transport.get());
          transport_ = transport.get();
          return transport;
        },
        [&opened](const Status& status) { opened.set_value(status); },
        [this](std::vector<Notice> batch) { notices_.add(std::move(batch)); }, &engine_);
    ASSERT_TRUE(started.is_ok());
    open_status_ = opened.get_future().get();
  }

  Status add_peer(PeerId peer, std::vector<std::byte> metadata = {std::byte{1}}) {
    std::promise<Status> reply;
    engine_->push(AddPeer{
        peer, std::move(metadata),
        [&reply](const Status& status, const std::vector<Region>&, const PeerPaths&) { reply.set_value(status); }});
    return reply.get_future().get();
  }

  // The progress thread has taken at least `steps` steps since the call.
  void let_steps_pass(int steps) {
    for (int i = 0; i <= steps; ++i) {
      std::promise<void> reply;
      engine_->push(GetMetadata{[&reply](const Status&, const std::vector<std::byte>&) { reply.set_value(); }});
      reply.get_future().get();
    }
  }

  std::future<CloseReport> begin_close(std::chrono::milliseconds limit) {
    auto reply = std::make_shared<std::promise<CloseReport>>();
    engine_->push(CloseAgent{std::chrono::steady_clock::now() + limit,
                             [reply](const CloseReport& report) { reply->set_value(report); }});
    return reply->get_future();
  }

  void TearDown() override {
    if (engine_ == nullptr) return;
    (void)begin_close(0ms);
    EXPECT_TRUE(engine_->wait_closed(5s));
  }

  FakeTransport* transport_ = nullptr;  // of the progress thread
  Status open_status_;
  NoticeBox notices_;
  std::shared_ptr<AgentEngine> engine_;
};

TEST_F(AgentEngineTest, AnswersEveryCommand) {
  start();
  EXPECT_TRUE(open_status_.is_ok());
  std::promise<std::size_t> size;
  engine_->push(AllocateRegion{
      4096, [&size](const Status& status, const Region& region) { size.set_value(status.is_ok() ? region.size : 0); }});
  EXPECT_EQ(size.get_future().get(), 4096U);
  std::promise<std::size_t> bytes;
  engine_->push(GetMetadata{[&bytes](const Status&, std::vector<std::byte> got) { bytes.set_value(got.size()); }});
  EXPECT_EQ(bytes.get_future().get(), 3U);
  EXPECT_TRUE(add_peer(1).is_ok());
  EXPECT_EQ(add_peer(2, {}).code(), StatusCode::kTransport);
  std::promise<void> removed;
  engine_->push(RemovePeer{1, [&removed] { removed.set_value(); }});
  removed.get_future().get();
}

TEST_F(AgentEngineTest, TransfersAndReports) {
  start([](FakeTransport* t) { t->post_result = BatchResult{BatchState::kDone, false, {}}; });
  ASSERT_TRUE(add_peer(1).is_ok());
  for (SubmissionId id = 1; id <= 50; ++id) engine_->push(submission_of(id, 1, id % 3, 20));
  std::set<SubmissionId> seen;
  for (const Notice& notice : notices_.wait_for(50)) {
    EXPECT_EQ(notice.outcome, Outcome::kTransferred);
    EXPECT_TRUE(seen.insert(notice.submission).second);
  }
  EXPECT_EQ(seen.size(), 50U);
}

TEST_F(AgentEngineTest, AnEventFromAnotherThreadReleasesTheSlice) {
  start([](FakeTransport* t) { t->post_result = BatchResult{BatchState::kDone, false, {}}; });
  ASSERT_TRUE(add_peer(1).is_ok());
  auto event = std::make_shared<HostEvent>();
  Submission waiting = submission_of(1, 1, 1, 4);
  waiting.after = event;
  engine_->push(std::move(waiting));
  engine_->push(submission_of(2, 1, 2, 4));
  EXPECT_EQ(notices_.wait_for(1)[0].submission, 2U);
  std::thread other([&] {
    event->signal();
    engine_->push(EventsChanged{});
  });
  other.join();
  EXPECT_EQ(notices_.wait_for(2)[1].submission, 1U);
}

TEST_F(AgentEngineTest, AFailedOpeningAnswersEverythingWithItsReason) {
  start([](FakeTransport* t) { t->open_status = Status(StatusCode::kCapability, "no such thing here"); });
  EXPECT_EQ(open_status_.code(), StatusCode::kCapability);
  EXPECT_EQ(add_peer(1).message(), "no such thing here");
  engine_->push(submission_of(1, 1, 1, 4));
  const Notice notice = notices_.wait_for(1)[0];
  EXPECT_EQ(notice.outcome, Outcome::kCancelled);
  EXPECT_EQ(notice.error.code(), StatusCode::kCapability);
  const CloseReport report = begin_close(1s).get();
  EXPECT_TRUE(report.drained);
}

TEST_F(AgentEngineTest, CloseCancelsWhatWaitsAndAnswersConnectingPeers) {
  start([](FakeTransport* t) { t->post_result = BatchResult{BatchState::kDone, false, {}}; });
  ASSERT_TRUE(add_peer(1).is_ok());
  Submission waiting = submission_of(1, 1, 1, 4);
  waiting.after = std::make_shared<HostEvent>();
  engine_->push(std::move(waiting));
  std::promise<Status> peer;
  engine_->push(
      AddPeer{2, {std::byte{1}}, [&peer](const Status& status, const auto&, const auto&) { peer.set_value(status); }});
  const CloseReport report = begin_close(10s).get();
  EXPECT_TRUE(report.drained);
  EXPECT_EQ(report.outstanding, 0U);
  const Notice notice = notices_.wait_for(1)[0];
  EXPECT_EQ(notice.outcome, Outcome::kCancelled);
  EXPECT_TRUE(notice.drained);
  (void)peer.get_future().get();
  EXPECT_TRUE(engine_->wait_closed(5s));
}

TEST_F(AgentEngineTest, CloseGivesUpAtItsDeadlineAndSaysSo) {
  start([](FakeTransport* t) { t->closes_drained = false; });
  ASSERT_TRUE(add_peer(1).is_ok());
  engine_->push(submission_of(1, 1, 1, 4));
  engine_->push(submission_of(2, 1, 1, 100));
  let_steps_pass(2);
  const auto begin = std::chrono::steady_clock::now();
  const CloseReport report = begin_close(100ms).get();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
  EXPECT_FALSE(report.drained);
  EXPECT_EQ(report.outstanding, 2U);
  for (const Notice& notice : notices_.wait_for(2)) EXPECT_FALSE(notice.drained);
}

TEST_F(AgentEngineTest, CloseWaitsForWhoeverTouchesTheMemory) {
  start();
  ASSERT_TRUE(engine_->leases().acquire());
  std::future<CloseReport> closing = begin_close(10s);
  EXPECT_EQ(closing.wait_for(50ms), std::future_status::timeout);
  EXPECT_FALSE(engine_->leases().acquire());
  engine_->leases().release();
  EXPECT_TRUE(closing.get().drained);
}

TEST_F(AgentEngineTest, CloseWaitsForATransportThatStillReads) {
  start();
  transport_->at_rest = false;
  std::future<CloseReport> closing = begin_close(10s);
  EXPECT_EQ(closing.wait_for(20ms), std::future_status::timeout);
  transport_->at_rest = true;
  // Wakes the thread, as the end of a read would; nobody answers once the agent is closed.
  engine_->push(GetMetadata{[](const Status&, const std::vector<std::byte>&) {}});
  ASSERT_EQ(closing.wait_for(5s), std::future_status::ready);
  EXPECT_TRUE(closing.get().drained);
}

TEST_F(AgentEngineTest, MemoryInUseAtTheDeadlineStaysMapped) {
  start();
  ASSERT_TRUE(engine_->leases().acquire());
  const CloseReport report = begin_close(20ms).get();
  EXPECT_FALSE(report.drained);
  EXPECT_EQ(report.outstanding, 1U);
  EXPECT_FALSE(transport_->is_closed);
  delete transport_;  // given up by the engine, on purpose
  engine_->leases().release();
}

TEST_F(AgentEngineTest, AnIdleAgentCostsNothing) {
  start();
  ASSERT_TRUE(add_peer(1).is_ok());
  rusage before{};
  rusage after{};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &before), 0);
  std::this_thread::sleep_for(200ms);
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &after), 0);
  const long switches = (after.ru_nvcsw - before.ru_nvcsw) + (after.ru_nivcsw - before.ru_nivcsw);
  EXPECT_LE(switches, 20) << "the progress thread woke up without a reason";
}

TEST_F(AgentEngineTest, CommandsFromManyThreadsAllArrive) {
  start([](FakeTransport* t) { t->post_result = BatchResult{BatchState::kDone, false, {}}; });
  ASSERT_TRUE(add_peer(1).is_ok());
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kEach; ++i) {
        engine_->push(submission_of(static_cast<SubmissionId>(t * kEach + i + 1), 1, static_cast<FlowId>(t), 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(notices_.wait_for(kThreads * kEach).size(), static_cast<std::size_t>(kThreads * kEach));
}

}  // namespace
}  // namespace kvt
