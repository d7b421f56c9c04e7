#pragma once

#include <list>
#include <vector>

#include "core/page_copy.h"
#include "transport/bounce_mover.h"

namespace kvt {

// Copies with the progress thread, a bounded number of bytes a call; jobs take turns, so a large chunk never holds up a
// small one, and a job that is dropped has at most one turn behind it.
class BounceHostMover final : public BounceMover {
 public:
  void start(Job job) override;
  void drop(JobId job) override;
  void work(std::vector<Ended>* out) override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;

 private:
  struct Running {
    Job job;
    PackedCursor cursor;
  };

  // False when it is over.
  bool turn(Running* running, std::vector<Ended>* out);

  std::list<Running> running_;
  std::vector<Ended> dropped_;
  // Kept for their capacity.
  std::vector<PackedCursor::Piece> pieces_;
  std::vector<PageCopy> copies_;
};

}  // namespace kvt
