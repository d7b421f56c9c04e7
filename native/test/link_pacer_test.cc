#include "core/link_pacer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvt {
namespace {

using namespace std::chrono_literals;
using TimePoint = LinkPacer::TimePoint;

const TimePoint kStart = TimePoint{} + 1h;

LinkPacer pacer_of(double gbps) {
  LinkPacer pacer;
  EXPECT_TRUE(LinkPacer::create(gbps, &pacer).is_ok());
  return pacer;
}

TEST(LinkPacer, OneBatchTakesItsBytesOverTheRate) {
  LinkPacer pacer = pacer_of(25);
  EXPECT_EQ(pacer.enqueue(kStart, 3'125'000), kStart + 1ms);
}

TEST(LinkPacer, BytesOfEveryoneQueueOnOneLink) {
  LinkPacer pacer = pacer_of(8);
  EXPECT_EQ(pacer.enqueue(kStart, 1000), kStart + 1000ns);
  EXPECT_EQ(pacer.enqueue(kStart + 1ns, 1000), kStart + 2000ns);
  EXPECT_EQ(pacer.enqueue(kStart + 1999ns, 500), kStart + 2500ns);
}

TEST(LinkPacer, IdleTimeIsLost) {
  LinkPacer pacer = pacer_of(8);
  (void)pacer.enqueue(kStart, 1000);
  EXPECT_EQ(pacer.enqueue(kStart + 1h, 1000), kStart + 1h + 1000ns);
  EXPECT_EQ(pacer.enqueue(kStart + 1h, 1000), kStart + 1h + 2000ns);
}

TEST(LinkPacer, RoundingNeverAddsUp) {
  // 3 Gbit/s: a byte takes 2 2/3 ns, so that every single batch would round.
  LinkPacer pacer = pacer_of(3);
  TimePoint last{};
  for (int i = 0; i < 3'000'000; ++i) last = pacer.enqueue(kStart, 1);
  EXPECT_EQ(last, kStart + 8ms);
}

TEST(LinkPacer, NeverFasterThanTheRateOverAnySpan) {
  std::mt19937 random(7);
  LinkPacer pacer = pacer_of(10);
  TimePoint now = kStart;
  TimePoint busy_since = kStart;
  TimePoint free_at = kStart;
  std::uint64_t busy_bytes = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += std::chrono::nanoseconds(std::uniform_int_distribution<int>(0, 60'000)(random));
    const auto bytes = std::uniform_int_distribution<std::size_t>(0, 100'000)(random);
    if (now > free_at) {
      busy_since = now;
      busy_bytes = 0;
    }
    busy_bytes += bytes;
    free_at = pacer.enqueue(now, bytes);
    const double exact = static_cast<double>(busy_bytes) * 0.8;
    ASSERT_NEAR(static_cast<double>((free_at - busy_since).count()), exact, 1.0) << "batch " << i;
  }
}

TEST(LinkPacer, LongBusyPeriodsDoNotOverflow) {
  LinkPacer pacer = pacer_of(1);
  TimePoint last{};
  for (int i = 0; i < 1000; ++i) last = pacer.enqueue(kStart, std::size_t{1} << 40);
  EXPECT_EQ(last - kStart, std::chrono::nanoseconds(8'796'093'022'208'000));
}

TEST(LinkPacer, RefusesRatesThatAreNone) {
  LinkPacer pacer;
  for (const double rate : {0.0, -1.0, 1e-9, 1e9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(LinkPacer::create(rate, &pacer).code(), StatusCode::kInvalidArgument) << rate;
  }
}

}  // namespace
}  // namespace kvt
