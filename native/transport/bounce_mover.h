#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/bounce_plan.h"
#include "transport/transport.h"

namespace kvt {

// Role: moves bytes between pages and the arena of this side.
// Threading: the progress thread; no call waits for a device.
// Ownership: holds tables and slots of a job until it ended. Pages and arena were checked by the caller.
class BounceMover {
 public:
  using JobId = std::uint64_t;
  struct Job {
    JobId id = 0;
    std::shared_ptr<const std::vector<PackedGroup>> groups;
    PackedSide side = PackedSide::kSource;  // kSource: gather, kDestination: scatter
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uintptr_t linear = 0;  // in the arena
  };
  // kCancelled: it was dropped. Whatever the status, the job touches nothing any more, except where may_still_land.
  struct Ended {
    JobId id = 0;
    Status status;
    bool may_still_land = false;
  };

  virtual ~BounceMover() = default;
  BounceMover() = default;
  BounceMover(const BounceMover&) = delete;
  BounceMover& operator=(const BounceMover&) = delete;

  virtual Status open() { return Status::ok(); }
  virtual void start(Job job) = 0;
  // Ends it early where that is possible; it is reported by work() either way. Unknown jobs are ignored.
  virtual void drop(JobId job) = 0;
  // Goes on with what is started; appends what ended.
  virtual void work(std::vector<Ended>* out) = 0;
  // When work() has something to do; nullopt: nothing is started.
  virtual std::optional<TimePoint> next_wakeup(TimePoint now) const = 0;
  bool is_idle() const { return !next_wakeup(TimePoint{}).has_value(); }
  // A lost device left jobs of which nothing says that they ended.
  virtual bool has_lost() const { return false; }
};

}  // namespace kvt
