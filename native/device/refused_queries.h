#pragma once

#include <chrono>

#include "core/status.h"
#include "device/cuda_stream.h"

namespace kvt {

// Role: tells a driver that will not say how far the device is from a device that is lost.
// Why: what is queued cannot be taken back, so that a query which fails for want of memory must not be read as an end:
//   pages would be held for ever though the copy ran. It is asked again, until it has refused so often and for so long
//   that nothing will be known any more. One for all marks of a thread: what is refused of one is refused of all, and
//   must not be found out mark by mark.
// Threading: one at a time.
class RefusedQueries {
 public:
  static constexpr auto kLimit = std::chrono::seconds(1);
  // Whoever asks rarely has not been refused for long by two refusals that lie far apart.
  static constexpr unsigned kAtLeast = 16;

  // `error`: of a failed query.
  EventProgress judge(EventProgress answer, const Status& error) {
    if (answer != EventProgress::kFailed) {
      count_ = 0;
      return answer;
    }
    if (error.code() == StatusCode::kDeviceLost) return answer;
    const auto now = std::chrono::steady_clock::now();
    if (count_ == 0) since_ = now;
    if (count_ < kAtLeast) ++count_;
    return count_ < kAtLeast || now - since_ < kLimit ? EventProgress::kPending : answer;
  }

 private:
  unsigned count_ = 0;  // since the last answer, up to kAtLeast
  std::chrono::steady_clock::time_point since_;
};

}  // namespace kvt
