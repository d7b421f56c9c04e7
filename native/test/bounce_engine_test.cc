// The bounce path through real engines and transports: two agents of one process over the host transport and over
// NIXL with host memory.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "bounce_agent.h"

namespace kvt {
namespace {

using namespace bounce_test;
using namespace std::chrono_literals;

TEST(BounceEngine, EveryByteArrivesOverTheHostTransport) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.a, &pair.b, 1, 1));
  EXPECT_TRUE(pair.a.close().drained);
  EXPECT_TRUE(pair.b.close().drained);
}

TEST(BounceEngine, EveryByteArrivesOverNixlWithHostMemory) {
  const NixlProbe probe = probe_nixl({.agent_name = "probe", .library_path = "", .package_tree = KVT_PACKAGE_TREE});
  if (!probe.available) {
    const char* required = std::getenv("KV_TRANSCEIVER_REQUIRE");
    if (required != nullptr && std::strstr(required, "nixl") != nullptr) FAIL() << probe.reason;
    GTEST_SKIP() << "BOUNCE OVER NIXL IS NOT TESTED: " << probe.reason;
  }
  Pair pair(nixl_factory(small_arena(), "bounce-a"), nixl_factory(small_arena(), "bounce-b"));
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.a, &pair.b, 1, 1));
  EXPECT_TRUE(pair.a.close().drained);
  EXPECT_TRUE(pair.b.close().drained);
}

TEST(BounceEngine, BothDirectionsAtOnceInTheSmallestArenaDoNotWaitForEachOther) {
  BounceOptions options = small_arena();
  options.arena_bytes = 2 * options.max_chunk_bytes;
  Pair pair(host_factory(options), host_factory(options));
  std::mt19937 random(3);
  const auto there = heads_table(pair.a.pool.base, pair.b.pool.base);
  const auto back = heads_table(pair.b.pool.base, pair.a.pool.base);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
  for (Ticket ticket = 1; ticket <= 8; ++ticket) {
    ASSERT_TRUE(pair.b.expect(1, ticket, {inbound_of(0, there, pairs)}).is_ok());
    ASSERT_TRUE(pair.a.expect(1, ticket, {inbound_of(0, back, pairs)}).is_ok());
    pair.a.submit(slice_of(ticket, 1, ticket, there, pairs, 0));
    pair.b.submit(slice_of(ticket, 1, ticket, back, pairs, 0));
  }
  for (SubmissionId id = 1; id <= 8; ++id) {
    EXPECT_EQ(pair.a.wait(id).outcome, Outcome::kTransferred) << pair.a.wait(id).error.message();
    EXPECT_EQ(pair.b.wait(id).outcome, Outcome::kTransferred) << pair.b.wait(id).error.message();
  }
}

TEST(BounceEngine, ATicketThatNobodyExpectsIsRefusedWithTheReason) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::memset(pair.b.bytes(), 0x22, kPool);
  pair.a.submit(slice_of(1, 1, 9, table, {0, 0, 1, 1}, 0));
  const Notice notice = pair.a.wait(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  EXPECT_NE(notice.error.message().find("expects nothing"), std::string::npos) << notice.error.message();
  EXPECT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x22), static_cast<std::ptrdiff_t>(kPool));
}

TEST(BounceEngine, ASlotOfAnotherTicketIsRefusedAndNoPageIsTouched) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::memset(pair.b.bytes(), 0x33, kPool);
  ASSERT_TRUE(pair.b.expect(1, 1, {{0, table, {3, 4, 5}}}).is_ok());
  ASSERT_TRUE(pair.b.expect(1, 2, {{0, table, {6}}}).is_ok());
  pair.a.submit(slice_of(1, 1, 1, table, {0, 3, 1, 6}, 0));
  const Notice notice = pair.a.wait(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_NE(notice.error.message().find("does not belong"), std::string::npos) << notice.error.message();
  EXPECT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x33), static_cast<std::ptrdiff_t>(kPool));
}

TEST(BounceEngine, PagesAreFreeTheMomentTheReceiveIsEnded) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  std::mt19937 random(8);
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  fill(&pair.a, 1);
  for (Ticket ticket = 1; ticket <= 30; ++ticket) {
    const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
    ASSERT_TRUE(pair.b.expect(1, ticket, {inbound_of(0, table, pairs)}).is_ok());
    pair.a.submit(slice_of(ticket, 1, ticket, table, pairs, 0));
    // At another moment of the transfer each time.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 4000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    pair.b.end(1, ticket);
    std::memset(pair.b.bytes(), 0x44, kPool);
    const Notice notice = pair.a.wait(ticket);
    ASSERT_TRUE(notice.drained) << notice.error.message();
    ASSERT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x44), static_cast<std::ptrdiff_t>(kPool));
  }
  // Nothing of the arena was lost on the way.
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.b, &pair.a, 1, 1));
}

TEST(BounceEngine, ACancelEndsASliceThatWaitsForItsReceiver) {
  BounceOptions options = small_arena();
  options.request_timeout = 60s;
  Pair pair(host_factory(options), host_factory(options));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  // The receiver parks what it does not know yet, so the slice is in flight when the cancel comes.
  pair.a.submit(slice_of(1, 1, 5, table, {0, 0}, 0));
  pair.a.cancel(1);
  const Notice notice = pair.a.wait(1, 5s);
  EXPECT_EQ(notice.outcome, Outcome::kCancelled) << notice.error.message();
  EXPECT_TRUE(notice.drained);
}

TEST(BounceEngine, SlicesOfFewOrLargePiecesGoByTheTransportBelow) {
  BounceOptions options = small_arena();
  options.is_forced = false;
  options.min_descriptor_count = 1000;
  Pair pair(host_factory(options), host_factory(options));
  fill(&pair.a, 2);
  std::memset(pair.b.bytes(), 0x55, kPool);
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  // 124 pairs are 992 pieces: no registration is needed. 126 are 1008.
  std::mt19937 random(4);
  const std::vector<std::int32_t> few = shuffled_pairs(&random, 124);
  pair.a.submit(slice_of(1, 1, 7, table, few, 0));
  EXPECT_EQ(pair.a.wait(1).outcome, Outcome::kTransferred);
  const std::vector<std::uint8_t> expected = expected_after(&pair.a, 0x55, *table, few);
  EXPECT_EQ(std::memcmp(pair.b.bytes(), expected.data(), kPool), 0);
  pair.a.submit(slice_of(2, 1, 7, table, shuffled_pairs(&random, 126), 0));
  EXPECT_EQ(pair.a.wait(2).outcome, Outcome::kFailed) << "it was not bounced";
  pair.a.submit(slice_of(3, 1, 0, table, few, 0));
  EXPECT_EQ(pair.a.wait(3).outcome, Outcome::kTransferred) << "without a ticket";
}

TEST(BounceEngine, APairThatDoesNotAgreeGoesByTheTransportBelow) {
  BounceOptions other = small_arena();
  other.max_chunk_bytes /= 2;
  for (const auto& factory : {host_factory(std::nullopt), host_factory(other)}) {
    Pair pair(host_factory(small_arena()), factory);
    fill(&pair.a, 2);
    fill(&pair.b, 3);
    const auto there = heads_table(pair.a.pool.base, pair.b.pool.base);
    ASSERT_TRUE(pair.b.expect(1, 1, {{0, there, {1}}}).is_ok());
    pair.a.submit(slice_of(1, 1, 1, there, {0, 1}, 0));
    ASSERT_EQ(pair.a.wait(1).outcome, Outcome::kTransferred) << pair.a.wait(1).error.message();
    pair.b.submit(slice_of(1, 1, 1, heads_table(pair.b.pool.base, pair.a.pool.base), {0, 1}, 0));
    ASSERT_EQ(pair.b.wait(1).outcome, Outcome::kTransferred) << pair.b.wait(1).error.message();
    pair.b.end(1, 1);
  }
}

TEST(BounceEngine, ARemovedPeerFailsItsSlicesAndGivesItsRegionsBack) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::mt19937 random(6);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
  ASSERT_TRUE(pair.b.expect(1, 1, {inbound_of(0, table, pairs)}).is_ok());
  pair.a.submit(slice_of(1, 1, 1, table, pairs, 0));
  pair.a.remove(1);
  const Notice notice = pair.a.wait(1);
  EXPECT_NE(notice.outcome, Outcome::kCancelled);
  EXPECT_TRUE(notice.drained);
  pair.b.end(1, 1);
}

}  // namespace
}  // namespace kvt
