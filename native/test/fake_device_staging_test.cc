// Bounced slices that wait for a forward, beside others: while it lasts they take nothing of any arena. Over a stand-in
// for the driver; needs no GPU.
#include <array>

#include "fake_device_fixture.h"

namespace kvt::test {
namespace {

// A slice is as much as an arena's staging takes, and two are more than it grants at a time.
class BouncedWaits : public FakeDeviceTest {
 protected:
  struct Writer {
    std::shared_ptr<BounceGauges> gauges = std::make_shared<BounceGauges>();
    std::unique_ptr<TestAgent> agent = std::make_unique<TestAgent>("writer", bounced(gauges));
    Region pool;
    PlacedPlan plan;
    PeerId id = 0;  // of it, at the receiver
  };

  void SetUp() override {
    FakeDeviceTest::SetUp();
    KVT_ASSERT_OK(receiver_->allocate(kPool, &destination_));
    for (Writer& writer : writers_) {
      writer.id = static_cast<PeerId>(1 + (&writer - writers_.data()));
      KVT_ASSERT_OK(writer.agent->allocate(kPool, &writer.pool));
      const std::vector<std::byte> metadata = writer.agent->metadata();
      KVT_ASSERT_OK(writer.agent->add_peer(1, receiver_->metadata()));
      KVT_ASSERT_OK(receiver_->add_peer(writer.id, metadata));
      writer.plan = scattered(writer.pool, destination_);
      fill(writer.pool, 0x33);
      for (Ticket ticket = 1; ticket <= kTickets; ++ticket) {
        InboundGroup inbound{.key = 0, .table = writer.plan.groups[0].table, .slots = {}};
        const std::vector<std::int32_t>& pairs = writer.plan.groups[0].slot_pairs;
        for (std::size_t pair = 1; pair < pairs.size(); pair += 2) inbound.slots.push_back(pairs[pair]);
        KVT_ASSERT_OK(receiver_->expect_inbound(writer.id, ticket, {inbound}));
      }
    }
    fill(destination_, 0x77);
    launches_ = FakeCuda::calls("cuLaunchKernel");
  }
  void TearDown() override {
    FakeCuda::order({});
    for (Writer& writer : writers_) {
      if (writer.agent == nullptr) continue;
      EXPECT_TRUE(writer.agent->close().drained);
    }
    EXPECT_TRUE(receiver_->close().drained);
    FakeDeviceTest::TearDown();
  }

  // Each under a ticket of its own.
  void submit(Writer* writer, SubmissionId id, std::shared_ptr<const ReadyEvent> after = nullptr) const {
    writer->agent->submit(
        {.id = id, .peer = 1, .flow = id, .groups = writer->plan.groups, .after = std::move(after), .ticket = id});
  }
  void expect_sent(Writer* writer, SubmissionId id) {
    const Notice notice = writer->agent->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kTransferred) << "slice " << id << ": " << notice.error.message();
    EXPECT_EQ(notice.bytes, kPool) << "slice " << id;
    sent_ += 2 * kChunks;  // a gather and a scatter for each
  }
  // No kernel ran but those of the slices that were sent, and nothing is held anywhere for another.
  void expect_nothing_taken() {
    for (const BounceGauges* const gauges : {writers_[0].gauges.get(), writers_[1].gauges.get(), taken_.get()}) {
      for (const BounceGauge gauge : {BounceGauge::kArenaUsedBytes, BounceGauge::kSlicesSending,
                                      BounceGauge::kChunksWaiting, BounceGauge::kRequestsReceiving}) {
        const auto index = static_cast<std::size_t>(gauge);
        await("gauge " + std::to_string(index) + " at 0", [&] { return gauges->at(index) == 0; });
      }
    }
    EXPECT_EQ(FakeCuda::calls("cuLaunchKernel") - launches_, sent_);
  }

  static constexpr Ticket kTickets = 16;
  static constexpr std::uint64_t kChunks = 2;

  std::shared_ptr<BounceGauges> taken_ = std::make_shared<BounceGauges>();
  std::unique_ptr<TestAgent> receiver_ = std::make_unique<TestAgent>("receiver", bounced(taken_));
  std::array<Writer, 2> writers_;
  Writer& writer_ = writers_[0];
  Region destination_;
  std::uint64_t launches_ = 0;
  std::uint64_t sent_ = 0;
};

TEST_F(BouncedWaits, OneThatComesFirstHoldsUpNone) {
  FakeCuda::order({"hold"});
  submit(&writer_, 1, forward_event());
  for (SubmissionId id = 2; id <= 5; ++id) submit(&writer_, id);
  for (SubmissionId id = 2; id <= 5; ++id) expect_sent(&writer_, id);
  EXPECT_TRUE(is_filled(destination_, 0x33));
  expect_nothing_taken();
  EXPECT_FALSE(writer_.agent->has_settled(1));
  // What the forward makes of the pages, and no byte from before.
  fill(writer_.pool, 0x44);
  FakeCuda::order({});
  expect_sent(&writer_, 1);
  EXPECT_TRUE(is_filled(destination_, 0x44));
}

TEST_F(BouncedWaits, ThoseUnderWayGoOnWhenItComes) {
  FakeCuda::order({"hold"});
  // As a pipelined prefill submits them: what its last step made, and what the next one will.
  for (SubmissionId id = 1; id <= 8; ++id) submit(&writer_, id, id % 2 == 0 ? forward_event() : nullptr);
  for (SubmissionId id = 1; id <= 8; id += 2) expect_sent(&writer_, id);
  expect_nothing_taken();
  FakeCuda::order({});
  for (SubmissionId id = 2; id <= 8; id += 2) expect_sent(&writer_, id);
  EXPECT_TRUE(is_filled(destination_, 0x33));
}

TEST_F(BouncedWaits, AnotherWriterOfTheSameReceiverGoesOn) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  for (SubmissionId id = 1; id <= 8; ++id) submit(&writer_, id, event);
  for (SubmissionId id = 1; id <= 4; ++id) submit(&writers_[1], id);
  for (SubmissionId id = 1; id <= 4; ++id) expect_sent(&writers_[1], id);
  EXPECT_TRUE(is_filled(destination_, 0x33));
  expect_nothing_taken();
  FakeCuda::order({});
  for (SubmissionId id = 1; id <= 8; ++id) expect_sent(&writer_, id);
}

TEST_F(BouncedWaits, OneForwardThatFailsTakesItsOwnSlicesAlone) {
  FakeCuda::order({"hold"});
  const auto failing = forward_event();
  const auto ending = forward_event();
  for (SubmissionId id = 1; id <= 6; ++id) submit(&writer_, id, id % 2 == 0 ? failing : ending);
  submit(&writer_, 7);
  expect_sent(&writer_, 7);
  failing->fail("the forward step failed");
  writer_.agent->events_changed();
  for (SubmissionId id = 2; id <= 6; id += 2) {
    const Notice notice = writer_.agent->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kFailed);
    EXPECT_TRUE(notice.drained);
    EXPECT_EQ(notice.bytes, 0U);
    EXPECT_NE(notice.error.message().find("the forward step failed"), std::string::npos) << notice.error.message();
  }
  expect_nothing_taken();
  FakeCuda::order({});
  for (SubmissionId id = 1; id <= 5; id += 2) expect_sent(&writer_, id);
}

TEST_F(BouncedWaits, ACancelOrTheEndOfItsReceiveOrPeerNeedsNoForward) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  for (SubmissionId id = 1; id <= 3; ++id) submit(&writer_, id, event);
  submit(&writer_, 4);
  expect_sent(&writer_, 4);
  writer_.agent->cancel(1);
  const Notice cancelled = writer_.agent->settled(1);
  EXPECT_EQ(cancelled.outcome, Outcome::kCancelled);
  EXPECT_TRUE(cancelled.drained);
  EXPECT_TRUE(receiver_->end_inbound(1, 2));
  writer_.agent->remove_peer(1);
  for (SubmissionId id = 2; id <= 3; ++id) {
    const Notice removed = writer_.agent->settled(id);
    EXPECT_EQ(removed.error.code(), StatusCode::kPeerLost) << removed.error.message();
    EXPECT_TRUE(removed.drained);
  }
  EXPECT_TRUE(receiver_->end_inbound(1, 3));
  expect_nothing_taken();
  // Pages of both sides are their owners' again, whatever the forward does.
  fill(destination_, 0x77);
  FakeCuda::order({});
  EXPECT_TRUE(writer_.agent->close().drained);
  EXPECT_TRUE(is_filled(destination_, 0x77));
  expect_nothing_taken();
  writer_.agent.reset();
}

TEST_F(BouncedWaits, OneWhoseReceiveEndedMeanwhileFailsAfterItsForward) {
  FakeCuda::order({"hold"});
  submit(&writer_, 1, forward_event());
  submit(&writer_, 2);
  expect_sent(&writer_, 2);
  EXPECT_TRUE(receiver_->end_inbound(1, 1));
  fill(destination_, 0x77);
  FakeCuda::order({});
  const Notice notice = writer_.agent->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_NE(notice.error.message().find("the receiver refused"), std::string::npos) << notice.error.message();
  EXPECT_TRUE(is_filled(destination_, 0x77));
  submit(&writer_, 3);
  expect_sent(&writer_, 3);
}

}  // namespace
}  // namespace kvt::test
