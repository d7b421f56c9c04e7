#include "engine/transfer_loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "test/fake_transport.h"

namespace kvt {
namespace {

using test::FakeTransport;
using test::submission_of;

class TransferLoopTest : public testing::Test {
 protected:
  void SetUp() override {
    loop_.add_peer(1);
    loop_.add_peer(2);
  }

  void run() {
    while (loop_.step()) {
    }
    for (Notice& notice : loop_.take_notices()) notices_.push_back(std::move(notice));
  }

  // Ends every batch in flight until nothing moves any more.
  void finish_all() {
    std::size_t before = 0;
    do {
      before = transport_.posted.size();
      for (const BatchId id : std::vector<BatchId>(transport_.in_flight.begin(), transport_.in_flight.end())) {
        transport_.finish(id);
      }
      run();
    } while (transport_.posted.size() != before || !transport_.in_flight.empty());
  }

  std::vector<PeerId> posted_peers() const {
    std::vector<PeerId> peers;
    for (const auto& batch : transport_.posted) peers.push_back(batch.peer);
    return peers;
  }

  FakeTransport transport_;
  TransferLoop loop_{&transport_};
  std::vector<Notice> notices_;
};

TEST_F(TransferLoopTest, ASliceGoesInBoundedBatchesAndCompletesOnce) {
  loop_.submit(submission_of(7, 1, 1, 10));
  run();
  ASSERT_EQ(transport_.posted.size(), 2U) << "two in flight per peer";
  EXPECT_EQ(transport_.posted[0].runs.size(), 4U);
  EXPECT_TRUE(notices_.empty());
  finish_all();
  EXPECT_EQ(transport_.posted.size(), 3U);
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].submission, 7U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kTransferred);
  EXPECT_EQ(notices_[0].bytes, 10'240U);
  EXPECT_TRUE(notices_[0].drained);
  ASSERT_TRUE(notices_[0].posted_at.has_value());
  EXPECT_LE(*notices_[0].posted_at, notices_[0].finished_at);
  EXPECT_EQ(loop_.unfinished(), 0U);
}

TEST_F(TransferLoopTest, ALargeSliceDelaysASmallOneByOneBatchOnly) {
  transport_.post_result = BatchResult{BatchState::kDone, false, {}};
  loop_.submit(submission_of(1, 1, 1, 100));
  (void)loop_.step();
  loop_.submit(submission_of(2, 2, 2, 4));
  (void)loop_.step();
  (void)loop_.step();
  run();
  ASSERT_GE(transport_.posted.size(), 3U);
  EXPECT_EQ(transport_.posted[2].peer, 2U);
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[0].submission, 2U);
}

TEST_F(TransferLoopTest, SlicesOfAFlowArePostedInOrder) {
  loop_.submit(submission_of(1, 1, 5, 6));
  loop_.submit(submission_of(2, 1, 5, 6));
  finish_all();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[0].submission, 1U);
  EXPECT_EQ(notices_[1].submission, 2U);
  EXPECT_EQ(transport_.posted.size(), 4U);
}

TEST_F(TransferLoopTest, APeerThatStallsDoesNotHoldUpAnother) {
  loop_.submit(submission_of(1, 1, 1, 100));
  loop_.submit(submission_of(2, 2, 2, 4));
  run();
  EXPECT_EQ(posted_peers(), (std::vector<PeerId>{1, 2, 1}));
  transport_.finish(2);
  run();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].submission, 2U);
}

TEST_F(TransferLoopTest, WaitsForItsEventAndHoldsItsFlow) {
  auto event = std::make_shared<HostEvent>();
  Submission waiting = submission_of(1, 1, 1, 4);
  waiting.after = event;
  loop_.submit(std::move(waiting));
  loop_.submit(submission_of(2, 1, 1, 4));
  loop_.submit(submission_of(3, 1, 9, 4));
  finish_all();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].submission, 3U);
  loop_.events_changed();
  run();
  EXPECT_EQ(notices_.size(), 1U) << "nothing was settled";
  event->signal();
  loop_.events_changed();
  finish_all();
  ASSERT_EQ(notices_.size(), 3U);
  EXPECT_EQ(notices_[1].submission, 1U);
  EXPECT_EQ(notices_[2].submission, 2U);
}

TEST_F(TransferLoopTest, AFailedEventFailsEverySubmissionBehindIt) {
  auto event = std::make_shared<HostEvent>();
  for (const SubmissionId id : {1U, 2U}) {
    Submission waiting = submission_of(id, 1, id, 4);
    waiting.after = event;
    loop_.submit(std::move(waiting));
  }
  run();
  event->fail("out of memory in layer 3");
  event->signal();
  loop_.events_changed();
  run();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kFailed);
  EXPECT_NE(notices_[0].error.message().find("out of memory in layer 3"), std::string::npos);
  EXPECT_FALSE(notices_[0].posted_at.has_value());
  EXPECT_TRUE(transport_.posted.empty());
}

TEST_F(TransferLoopTest, CancelBeforePostingDropsEverything) {
  auto event = std::make_shared<HostEvent>();
  Submission waiting = submission_of(1, 1, 1, 4);
  waiting.after = event;
  loop_.submit(std::move(waiting));
  loop_.submit(submission_of(2, 1, 1, 4));
  run();
  loop_.cancel(1);
  loop_.cancel(1);
  loop_.cancel(99);
  finish_all();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(notices_[0].bytes, 0U);
  EXPECT_TRUE(notices_[0].drained);
  EXPECT_EQ(notices_[1].outcome, Outcome::kTransferred) << "what was behind it in its flow goes on";
}

TEST_F(TransferLoopTest, CancelInTheMiddleCompletesWhenWhatWasPostedHasEnded) {
  loop_.submit(submission_of(1, 1, 1, 100));
  run();
  loop_.cancel(1);
  run();
  EXPECT_TRUE(notices_.empty()) << "batches are still in flight";
  transport_.finish(1);
  transport_.finish(2);
  run();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(notices_[0].bytes, 8192U);
  EXPECT_TRUE(notices_[0].drained);
  EXPECT_EQ(transport_.posted.size(), 2U);
}

TEST_F(TransferLoopTest, CancelAfterTheLastBatchChangesNothing) {
  loop_.submit(submission_of(1, 1, 1, 4));
  run();
  loop_.cancel(1);
  finish_all();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kTransferred);
}

TEST_F(TransferLoopTest, AFailedPostThatTouchedNothingIsDrained) {
  transport_.post_result = BatchResult{BatchState::kFailed, false, Status(StatusCode::kPeerLost, "gone")};
  loop_.submit(submission_of(1, 1, 1, 100));
  run();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kFailed);
  EXPECT_EQ(notices_[0].error.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(notices_[0].drained);
  EXPECT_EQ(transport_.posted.size(), 1U) << "nothing more is posted after a failure";
}

TEST_F(TransferLoopTest, AFailureThatMayStillLandIsDrainedLater) {
  loop_.submit(submission_of(1, 1, 1, 100));
  run();
  transport_.finish(1);
  transport_.fail(2, true);
  run();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kFailed);
  EXPECT_EQ(notices_[0].bytes, 4096U);
  EXPECT_FALSE(notices_[0].drained);
  EXPECT_EQ(loop_.unfinished(), 1U);
  run();
  EXPECT_EQ(notices_.size(), 1U);
  transport_.drained = {2, 77};
  run();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[1].kind, NoticeKind::kDrained);
  EXPECT_EQ(notices_[1].submission, 1U);
  EXPECT_EQ(loop_.unfinished(), 0U);
}

TEST_F(TransferLoopTest, TheCompletionWaitsForEveryBatchOfAFailedSlice) {
  loop_.submit(submission_of(1, 1, 1, 100));
  run();
  transport_.fail(1, true);
  run();
  EXPECT_TRUE(notices_.empty());
  // Drained before the other batch has ended: the completion then tells it, and no notice follows.
  transport_.drained = {1};
  run();
  transport_.finish(2);
  run();
  ASSERT_EQ(notices_.size(), 1U);
  EXPECT_TRUE(notices_[0].drained);
  EXPECT_EQ(loop_.unfinished(), 0U);
}

TEST_F(TransferLoopTest, AnEmptySliceCompletesInItsTurn) {
  loop_.submit(submission_of(1, 1, 1, 4));
  loop_.submit(submission_of(2, 1, 1, 0));
  finish_all();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[1].outcome == Outcome::kTransferred && notices_[0].outcome == Outcome::kTransferred, true);
  EXPECT_EQ(transport_.posted.size(), 1U);
}

TEST_F(TransferLoopTest, RemovingAPeerFailsWhatIsQueuedAndLetsPostedWorkEnd) {
  loop_.submit(submission_of(1, 1, 1, 100));
  loop_.submit(submission_of(2, 1, 2, 4));
  loop_.submit(submission_of(3, 2, 3, 4));
  run();
  loop_.remove_peer(1);
  loop_.remove_peer(1);
  run();
  EXPECT_TRUE(transport_.removed.empty()) << "batches to it are in flight";
  finish_all();
  EXPECT_EQ(transport_.removed, std::vector<PeerId>{1});
  EXPECT_FALSE(transport_.removed_too_early);
  std::map<SubmissionId, Outcome> outcomes;
  for (const Notice& notice : notices_) outcomes[notice.submission] = notice.outcome;
  EXPECT_EQ(outcomes.at(1), Outcome::kFailed);
  EXPECT_EQ(outcomes.at(3), Outcome::kTransferred);
  loop_.submit(submission_of(4, 1, 1, 4));
  run();
  EXPECT_EQ(notices_.back().submission, 4U);
  EXPECT_EQ(notices_.back().error.code(), StatusCode::kPeerLost);
}

TEST_F(TransferLoopTest, AbandonedSlicesAreAnsweredOnceEach) {
  loop_.submit(submission_of(1, 1, 1, 100));
  loop_.submit(submission_of(2, 2, 2, 4));
  run();
  loop_.cancel_unposted(Status(StatusCode::kCancelled, "closing"));
  run();
  EXPECT_TRUE(notices_.empty());
  loop_.abandon_all(false, Status(StatusCode::kTransport, "closed"));
  run();
  ASSERT_EQ(notices_.size(), 2U);
  EXPECT_EQ(notices_[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(notices_[1].outcome, Outcome::kFailed);
  EXPECT_FALSE(notices_[0].drained);
  EXPECT_EQ(loop_.unfinished(), 0U);
}

}  // namespace
}  // namespace kvt
