#pragma once

#include <vector>

#include "addon/napi_setup.h"
#include "engine/submission.h"

namespace kvt {

// Notices as JS gets them: kNoticeRecord numbers each (kind, submission, outcome, bytes, drained, postedAtMs or NaN,
// finishedAtMs, status code, postingMs), and where any notice has a text or a note, one of them (or nothing) per
// notice, else undefined. src/agent/notice-records.ts reads it.
struct NoticeRecords {
  Napi::Float64Array numbers;
  Napi::Value messages;
};

inline constexpr std::size_t kNoticeRecord = 9;

NoticeRecords to_records(Napi::Env env, const std::vector<Notice>& notices);

}  // namespace kvt
