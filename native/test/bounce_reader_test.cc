// When a region of the arena may be granted to another request: never while its writer may still write there.

#include "core/bounce_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvt {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kUnit = 1 << 20;
constexpr std::uint64_t kTicket = 7;
constexpr BounceTime kStart{};

class BounceReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // One unit is left for grants: the other is staging's.
    const Status status =
        CreditScheduler::create({.arena_bytes = 2 * kUnit, .max_chunk = kUnit, .max_held_per_flow = 8}, &credits_);
    ASSERT_TRUE(status.is_ok()) << status.message();
    Fragment fragment;
    fragment.source = {0x1000, 1024, 1024, 2000};
    fragment.destination = {0x9000000, 1024, 1024, 2000};
    fragment.bytes = 1024;
    fragment.count = 1;
    ASSERT_TRUE(FragmentTable::create({fragment}, table_.get()).is_ok());
  }

  // The peer wants 800 KiB; what it is told.
  std::vector<BounceFrame> want(BouncePeer peer, BounceTime now) {
    std::vector<std::int32_t> slots;
    for (std::int32_t i = 0; i < 800; ++i) slots.push_back(i);
    reader_.add_peer(peer);
    EXPECT_TRUE(reader_.expect(peer, kTicket, {{.key = 0, .table = table_, .slots = slots}}).is_ok());
    BounceFrame want;
    want.type = BounceFrameType::kWant;
    want.request = 1;
    want.ticket = kTicket;
    want.total_bytes = 800 * 1024;
    want.chunk_bytes = kUnit;
    want.groups = {{0, 800, shape_of(*table_)}};
    want.slots = slots;
    reader_.on_frame(peer, want, now);
    reader_.step(now);
    return frames();
  }
  std::vector<BounceFrame> frames() {
    std::vector<BounceReaderAction> actions;
    reader_.take_actions(&actions);
    std::vector<BounceFrame> out;
    for (const BounceReaderAction& action : actions) {
      const auto* const sent = std::get_if<SendBounceFrame>(&action);
      if (sent == nullptr) continue;
      EXPECT_TRUE(decode_bounce_frame(sent->frame, &out.emplace_back()).is_ok());
    }
    return out;
  }
  BounceFrame of_writer(BounceFrameType type, BounceGrant grant) const {
    BounceFrame frame;
    frame.type = type;
    frame.request = 1;
    frame.ticket = kTicket;
    frame.grant = grant;
    return frame;
  }

  CreditScheduler credits_;
  BounceReader reader_{&credits_, BounceTimeouts{}};
  std::shared_ptr<FragmentTable> table_ = std::make_shared<FragmentTable>();
};

TEST_F(BounceReaderTest, WhatAWriterThatIsGoneMayStillWriteIsGrantedToNobody) {
  const std::vector<BounceFrame> granted = want(1, kStart);
  ASSERT_EQ(granted.size(), 1U);
  ASSERT_EQ(granted[0].type, BounceFrameType::kGrant);
  reader_.remove_peer(1, false, kStart);
  // It is told, should it listen, that nobody wants what it writes.
  const std::vector<BounceFrame> told = frames();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].refusal, BounceRefusal::kEnded);
  EXPECT_TRUE(reader_.is_unproven(1));
  EXPECT_EQ(reader_.lost_bytes(), kUnit);
  reader_.step(kStart + 24h);
  // There is no other room: the next one learns why instead of waiting.
  const std::vector<BounceFrame> refused = want(2, kStart + 24h);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].type, BounceFrameType::kNack);
  EXPECT_EQ(refused[0].refusal, BounceRefusal::kArenaLost);
  reader_.prove_end(1, kStart + 24h);
  EXPECT_EQ(reader_.lost_bytes(), 0U);
  EXPECT_FALSE(reader_.is_unproven(1));
  const std::vector<BounceFrame> next = want(3, kStart + 24h);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].type, BounceFrameType::kGrant);
}

TEST_F(BounceReaderTest, ARemovedWriterMaySayThatItsWritesHaveEnded) {
  BouncePeer peer = 0;
  for (const BounceFrameType word : {BounceFrameType::kData, BounceFrameType::kCancel}) {
    const std::vector<BounceFrame> granted = want(++peer, kStart);
    ASSERT_EQ(granted.size(), 1U);
    ASSERT_EQ(granted[0].type, BounceFrameType::kGrant);
    reader_.remove_peer(peer, false, kStart);
    (void)frames();
    // Not for another.
    reader_.add_peer(50 + peer);
    reader_.on_frame(50 + peer, of_writer(word, granted[0].grants[0].grant), kStart);
    EXPECT_TRUE(reader_.is_unproven(peer));
    reader_.on_frame(peer, of_writer(word, granted[0].grants[0].grant), kStart);
    EXPECT_FALSE(reader_.is_unproven(peer));
    EXPECT_EQ(credits_.arena().used(), 0U);
    // Nothing of it was scattered, and nothing it asks for is given.
    (void)frames();
    EXPECT_EQ(reader_.counters().quarantined, peer);
  }
}

TEST_F(BounceReaderTest, ARemovedWriterThatNamesARegionKeepsIt) {
  const std::vector<BounceFrame> granted = want(1, kStart);
  ASSERT_EQ(granted.size(), 1U);
  reader_.remove_peer(1, false, kStart);
  BounceFrame cancel = of_writer(BounceFrameType::kCancel, 0);
  cancel.unproven = {granted[0].grants[0].grant};
  reader_.on_frame(1, cancel, kStart);
  EXPECT_TRUE(reader_.is_unproven(1));
  cancel.unproven.clear();
  reader_.on_frame(1, cancel, kStart + 1h);
  EXPECT_FALSE(reader_.is_unproven(1));
}

}  // namespace
}  // namespace kvt
