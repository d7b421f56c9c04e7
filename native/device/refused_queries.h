#pragma once

#include <chrono>
#include <optional>

#include "core/status.h"
#include "device/cuda_stream.h"

namespace kvt {

// Role: tells a driver that will not say how far the device is from a device that is lost.
// Why: what is queued cannot be taken back, so that a query which fails for want of memory must not be read as an end:
//   pages would be held for ever though the copy ran. It is asked again, until it has refused for so long that nothing
//   will be known any more.
// Threading: one at a time.
class RefusedQueries {
 public:
  static constexpr auto kLimit = std::chrono::seconds(1);

  // `error`: of a failed query.
  EventProgress judge(EventProgress answer, const Status& error) {
    if (answer != EventProgress::kFailed) {
      since_.reset();
      return answer;
    }
    if (error.code() == StatusCode::kDeviceLost) return answer;
    const auto now = std::chrono::steady_clock::now();
    if (!since_) since_ = now;
    return now - *since_ < kLimit ? EventProgress::kPending : answer;
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace kvt
