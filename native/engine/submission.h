#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/flow_scheduler.h"
#include "core/plan_cursor.h"
#include "core/status.h"
#include "engine/ready_event.h"
#include "transport/transport.h"

namespace kvt {

using SubmissionId = std::uint64_t;

// One slice to one receiver. Slots were checked against their tables.
struct Submission {
  SubmissionId id = 0;
  PeerId peer = 0;
  FlowId flow = 0;
  std::vector<PlanGroup> groups;
  std::shared_ptr<const ReadyEvent> after;  // null: may start now
  Ticket ticket = 0;                        // of the receive it belongs to; 0: none
  // Sent to the peer once this submission and those of `note_also` have transferred, every one; empty: none.
  std::vector<std::byte> note{};
  std::vector<SubmissionId> note_also{};
};

// kEnded: a watched process has ended; `submission` is the watch. kAdvice: `error` holds what goes another way and why.
// kReleased: the submission goes on, but its source pages are not needed any more. kNote: what became of the note that
// came with the submission: kTransferred when it was sent. kInboundNote: `note` came from the agent of the watch
// `submission`;
// kNoteSoon: `note` will within some milliseconds, or never.
enum class NoticeKind : std::uint8_t {
  kCompletion = 0,
  kDrained = 1,
  kEnded = 2,
  kAdvice = 3,
  kReleased = 4,
  kNote = 5,
  kInboundNote = 6,
  kNoteSoon = 7
};
enum class Outcome : std::uint8_t { kTransferred = 0, kFailed = 1, kCancelled = 2 };

// What the engine reports of a submission: exactly one completion, before it at most one kReleased and, after one that
// was not drained, one kDrained. Of a note exactly one kNote, before the completion that decided it, or at once when a
// cancel did.
// The other kinds are about no submission.
struct Notice {
  NoticeKind kind = NoticeKind::kCompletion;
  SubmissionId submission = 0;
  // The rest belongs to completions.
  Outcome outcome = Outcome::kTransferred;
  std::uint64_t bytes = 0;  // known to have arrived
  bool drained = true;      // nothing of it can touch memory any more
  std::optional<TimePoint> posted_at;
  std::chrono::nanoseconds posting{0};  // how long the progress thread prepared and posted it, all batches together
  TimePoint finished_at{};
  Status error;
  std::vector<std::byte> note{};
};

}  // namespace kvt
