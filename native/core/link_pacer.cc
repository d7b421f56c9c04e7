#include "core/link_pacer.h"

#include <cmath>

namespace kvt {

Status LinkPacer::create(double gigabits_per_second, LinkPacer* out) {
  if (!std::isfinite(gigabits_per_second) || gigabits_per_second < 0.001 || gigabits_per_second > 1e6) {
    return Status(StatusCode::kInvalidArgument, "linkGbps must be a number from 0.001 to 1000000 (gigabits a second)");
  }
  LinkPacer pacer;
  pacer.bits_per_second_ = static_cast<std::uint64_t>(std::llround(gigabits_per_second * 1e9));
  *out = pacer;
  return Status::ok();
}

LinkPacer::TimePoint LinkPacer::enqueue(TimePoint now, std::size_t bytes) {
  if (now > free_at_ || busy_bytes_ == 0) {
    busy_since_ = now;
    busy_bytes_ = 0;
  }
  busy_bytes_ += bytes;
  // From the start of the busy period and in 128 bits, so that rounding never adds up.
  __extension__ using Wide = unsigned __int128;
  const Wide bits_times_nanos = static_cast<Wide>(busy_bytes_) * 8U * 1'000'000'000U;
  const auto nanos = static_cast<std::int64_t>((bits_times_nanos + bits_per_second_ - 1) / bits_per_second_);
  free_at_ = busy_since_ + std::chrono::nanoseconds(nanos);
  return free_at_;
}

}  // namespace kvt
