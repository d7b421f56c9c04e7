#include "transport/nixl_quarantine.h"

#include <gtest/gtest.h>

#include "transport/nixl_cadence.h"

namespace kvt::nixl {
namespace {

using namespace std::chrono_literals;

XferReq request(std::uintptr_t number) { return reinterpret_cast<XferReq>(number); }

const TimePoint kStart = TimePoint{} + 1h;

TEST(NixlQuarantine, HoldsWithoutEndUntilTheConnectionEnds) {
  Quarantine quarantine;
  quarantine.hold(7, 1, request(70));
  std::vector<BatchId> drained;
  quarantine.take_drained(kStart + 100h, &drained);
  EXPECT_TRUE(drained.empty());
  EXPECT_EQ(quarantine.next_drain(), std::nullopt);
  EXPECT_FALSE(quarantine.empty());
}

TEST(NixlQuarantine, GraceBeginsWithTheReleaseOfEveryRequestOfThatPeer) {
  Quarantine quarantine;
  quarantine.hold(7, 1, request(70));
  quarantine.hold(8, 2, request(80));
  quarantine.hold(9, 1, request(90));
  std::vector<XferReq> released;
  quarantine.begin_grace(1, kStart + 2s, [&](XferReq r) { released.push_back(r); });
  EXPECT_EQ(released, (std::vector<XferReq>{request(70), request(90)}));
  EXPECT_EQ(quarantine.next_drain(), kStart + 2s);

  std::vector<BatchId> drained;
  quarantine.take_drained(kStart + 1999ms, &drained);
  EXPECT_TRUE(drained.empty());
  quarantine.take_drained(kStart + 2s, &drained);
  EXPECT_EQ(drained, (std::vector<BatchId>{7, 9}));
  EXPECT_FALSE(quarantine.empty());
  drained.clear();
  quarantine.take_drained(kStart + 3s, &drained);
  EXPECT_TRUE(drained.empty()) << "a batch drains once";
}

TEST(NixlQuarantine, ASecondTearDownOfAPeerIdLeavesTheFirstGraceAlone) {
  Quarantine quarantine;
  int releases = 0;
  const auto count = [&](XferReq) { ++releases; };
  quarantine.hold(7, 1, request(70));
  quarantine.begin_grace(1, kStart + 2s, count);
  quarantine.hold(8, 1, request(80));
  quarantine.begin_grace(1, kStart + 9s, count);
  EXPECT_EQ(releases, 2) << "each request is released once";
  std::vector<BatchId> drained;
  quarantine.take_drained(kStart + 2s, &drained);
  EXPECT_EQ(drained, (std::vector<BatchId>{7}));
  EXPECT_EQ(quarantine.next_drain(), kStart + 9s);
}

TEST(NixlCadence, BacksOffWhileNothingHappensAndComesBackAtOnce) {
  Cadence cadence;
  cadence.touch(kStart);
  EXPECT_EQ(cadence.next(kStart + 1ms) - (kStart + 1ms), 100us);
  EXPECT_EQ(cadence.next(kStart + 50ms) - (kStart + 50ms), 250us);
  EXPECT_EQ(cadence.next(kStart + 10s) - (kStart + 10s), 1ms);

  cadence.observe(kStart + 10s, kStart + 10s + 1us);
  EXPECT_EQ(cadence.next(kStart + 10s) - (kStart + 10s), 1ms) << "a call that found nothing is no activity";
  cadence.observe(kStart + 10s, kStart + 10s + 500us);
  EXPECT_EQ(cadence.next(kStart + 10s + 500us), kStart + 10s + 500us) << "inbound work wants the thread again at once";
  cadence.observe(kStart + 11s, kStart + 11s + 1us);
  EXPECT_EQ(cadence.next(kStart + 11s) - (kStart + 11s), 1ms);
  EXPECT_EQ(cadence.next(kStart + 10s + 2ms) - (kStart + 10s + 2ms), 100us);
}

}  // namespace
}  // namespace kvt::nixl
