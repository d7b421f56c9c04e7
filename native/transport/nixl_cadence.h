#pragma once

#include <chrono>

#include "transport/transport.h"

namespace kvt::nixl {

// Role: how often the progress thread drives UCX while it has no batch of its own.
// Why: a peer's writes may need this side's CPU (TCP, wire-up, emulated writes), and NIXL's C API has no descriptor to
//   wait on and no sign of inbound work. Time is one: a progress call that found nothing takes about a microsecond.
class Cadence {
 public:
  // Someone here or there just used the agent.
  void touch(TimePoint now) { last_activity_ = now; }

  // A progress call ran from `start` to `end`.
  void observe(TimePoint start, TimePoint end) {
    was_busy_ = end - start > kIdleProgress;
    if (was_busy_) last_activity_ = end;
  }

  TimePoint next(TimePoint now) const {
    using namespace std::chrono_literals;
    if (was_busy_) return now;
    const auto quiet = now - last_activity_;
    if (quiet < 20ms) return now + 100us;
    if (quiet < 200ms) return now + 250us;
    return now + 1ms;
  }

 private:
  static constexpr std::chrono::microseconds kIdleProgress{15};

  TimePoint last_activity_{};
  bool was_busy_ = false;
};

}  // namespace kvt::nixl
