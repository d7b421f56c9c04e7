#include "transport/bounce_host_mover.h"

#include <utility>

namespace kvt {
namespace {

// About a tenth of a millisecond of copying.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
constexpr std::size_t kTurnPieces = 1024;

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
  if (running_.empty()) return;
  if (turn(&running_.front(), out)) {
    running_.splice(running_.end(), running_, running_.begin());
  } else {
    running_.pop_front();
  }
}

std::optional<TimePoint> BounceHostMover::next_wakeup(TimePoint now) const {
  return dropped_.empty() && running_.empty() ? std::nullopt : std::optional(now);
}

}  // namespace kvt
