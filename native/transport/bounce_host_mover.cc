#include "transport/bounce_host_mover.h"

#include <utility>

#include "device/cuda_event.h"

namespace kvt {
namespace {

// About a tenth of a millisecond of copying.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
constexpr std::size_t kTurnPieces = 1024;
// How often a device's event is asked for.
constexpr auto kEventInterval = std::chrono::microseconds(20);

// NOLINTNEXTLINE(performance-no-int-to-ptr): plans name memory by address
std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

void BounceHostMover::start(Job job) {
  const PackedCursor cursor(*job.groups, job.side, job.begin, job.end);
  running_.push_back({std::move(job), cursor});
}

void BounceHostMover::drop(JobId id) {
  for (auto entry = running_.begin(); entry != running_.end(); ++entry) {
    if (entry->job.id != id) continue;
    running_.erase(entry);
    dropped_.push_back({id, Status(StatusCode::kCancelled, "dropped"), false});
    return;
  }
}

bool BounceHostMover::turn(Running* running, std::vector<Ended>* out) {
  const Job& job = running->job;
  if (job.after != nullptr) {
    Status error;
    switch (job.after->query(&error)) {
      case EventProgress::kPending:
        return true;
      case EventProgress::kFailed:
        out->push_back({job.id, error, false});
        return false;
      case EventProgress::kReached:
        running->job.after = nullptr;
        break;
    }
  }
  pieces_.clear();
  copies_.clear();
  (void)running->cursor.take(kTurnPieces, kTurnBytes, &pieces_);
  for (const PackedCursor::Piece& piece : pieces_) {
    std::byte* page = at(piece.page);
    std::byte* linear = at(job.linear + piece.offset);
    copies_.push_back(job.side == PackedSide::kSource ? PageCopy{linear, page, piece.bytes}
                                                      : PageCopy{page, linear, piece.bytes});
  }
  copy_pages(copies_);
  if (!running->cursor.is_done()) return true;
  publish_copies();
  out->push_back({job.id, Status::ok(), false});
  return false;
}

void BounceHostMover::work(std::vector<Ended>* out) {
  out->insert(out->end(), dropped_.begin(), dropped_.end());
  dropped_.clear();
  // One turn moves bytes; jobs that wait for their event cost nothing but a question.
  for (std::size_t turns = running_.size(); turns > 0; --turns) {
    Running& next = running_.front();
    const bool goes_on = turn(&next, out);
    const bool was_waiting = goes_on && next.job.after != nullptr;
    if (goes_on) {
      running_.splice(running_.end(), running_, running_.begin());
    } else {
      running_.pop_front();
    }
    if (!was_waiting) return;
  }
}

std::optional<TimePoint> BounceHostMover::next_wakeup(TimePoint now) const {
  if (!dropped_.empty()) return now;
  if (running_.empty()) return std::nullopt;
  for (const Running& running : running_) {
    if (running.job.after == nullptr) return now;
  }
  return now + kEventInterval;
}

}  // namespace kvt
