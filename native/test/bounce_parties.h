#pragma once

// Who takes part in the simulation of the bounce protocol, and what may go wrong there.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bounce_world.h"
#include "core/bounce_reader.h"
#include "core/bounce_writer.h"

namespace kvt::test {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kMaxChunk = 2048;
inline constexpr std::int32_t kSlots = 40;

struct Faults {
  double lose = 0;
  double twice = 0;
  double fail_write = 0;
  double fail_gather = 0;
  double fail_scatter = 0;
  double cancel_slice = 0;
  double end_early = 0;
  double vanish = 0;
  bool reorders = false;
};

namespace bounce {

// A part of an arena that somebody may read or write now.
struct Hold {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const char* what = "";
};
struct Agent {
  explicit Agent(std::mt19937* random)
      : arena((2 + (*random)() % 5) * kMaxChunk), writer(nullptr, {}, 0), reader(nullptr, {}) {
    const Status status = CreditScheduler::create(
        {.arena_bytes = arena.size(), .min_block = 64, .max_chunk = kMaxChunk, .max_held_per_flow = 3}, &credits);
    EXPECT_TRUE(status.is_ok()) << status.message();
    const BounceTimeouts timeouts{.request = 2000ms, .hold = 500ms};
    writer = BounceWriter(&credits, timeouts, 3);
    reader = BounceReader(&credits, timeouts);
  }
  std::vector<std::uint8_t> arena;
  CreditScheduler credits;
  BounceWriter writer;
  BounceReader reader;
  std::map<std::uint64_t, Hold> holds;
  std::map<std::pair<BounceRequest, std::uint32_t>, std::uint64_t> gathers;  // running: its hold
  std::map<BounceGrant, std::uint64_t> scatters;
  std::map<BounceGrant, std::pair<BouncePeer, BounceRequest>> granted;
  bool is_gone = false;
  BounceTime stopped_until{};
};
struct Ticket {
  std::unique_ptr<World> world;
  std::size_t reader = 0;
  bool ended = false;   // BounceInboundEnded came
  bool ending = false;  // end() was called
};
struct Slice {
  std::size_t writer = 0;
  std::pair<std::size_t, std::uint64_t> ticket;
  std::vector<PlanGroup> groups;
  bool ended = false;
  bool drained = false;
  bool released = false;  // its source pages
  BounceOutcome outcome = BounceOutcome::kTransferred;
  std::string error;
};

}  // namespace bounce
}  // namespace kvt::test
