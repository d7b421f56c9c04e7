#include "addon/notice_records.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvt {
namespace {

double to_ms(TimePoint at) {
  // steady_clock is CLOCK_MONOTONIC here, as process.hrtime is.
  return std::chrono::duration<double, std::milli>(at.time_since_epoch()).count();
}

}  // namespace

NoticeRecords to_records(Napi::Env env, const std::vector<Notice>& notices) {
  NoticeRecords records;
  records.numbers = Napi::Float64Array::New(env, notices.size() * kNoticeRecord);
  records.messages = env.Undefined();
  Napi::Array messages;
  double* at = records.numbers.Data();
  for (std::size_t i = 0; i < notices.size(); ++i, at += kNoticeRecord) {
    const Notice& notice = notices[i];
    at[0] = static_cast<double>(notice.kind);
    at[1] = static_cast<double>(static_cast<std::int64_t>(notice.submission));
    at[2] = static_cast<double>(notice.outcome);
    at[3] = static_cast<double>(notice.bytes);
    at[4] = notice.drained ? 1 : 0;
    at[5] = notice.posted_at ? to_ms(*notice.posted_at) : std::numeric_limits<double>::quiet_NaN();
    at[6] = to_ms(notice.finished_at);
    at[7] = static_cast<double>(notice.error.code());
    at[8] = std::chrono::duration<double, std::milli>(notice.posting).count();
    if (notice.error.is_ok() && notice.note.empty()) continue;
    if (messages.IsEmpty()) {
      messages = Napi::Array::New(env, notices.size());
      records.messages = messages;
    }
    const auto index = static_cast<std::uint32_t>(i);
    if (notice.note.empty()) {
      messages.Set(index, Napi::String::New(env, notice.error.message()));
      continue;
    }
    auto note = Napi::Uint8Array::New(env, notice.note.size());
    std::memcpy(note.Data(), notice.note.data(), notice.note.size());
    messages.Set(index, note);
  }
  return records;
}

}  // namespace kvt
