#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "core/unique_fd.h"
#include "engine/command.h"
#include "transport/transport.h"

namespace kvt {

// Role: how other threads tell the progress thread what to do, and how it sleeps.
// Threading: push and notify from any thread; take and sleep from the progress thread alone.
// Invariant: nothing pushed or notified before or during a sleep is slept through.
class CommandQueue {
 public:
  // kResource when the process is out of descriptors. Called before anything else.
  Status open();

  void push(Command command);
  // Ends a sleep without a command.
  void notify();

  // Moves out everything pushed so far.
  void take(std::vector<Command>* out);

  // Sleeps until something is pushed or notified, `fd` (if >= 0) is readable, or `until` has come (never, if absent).
  void sleep(int fd, std::optional<TimePoint> until);

 private:
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> is_signalled_{false};  // the descriptor has been written since the last sleep began
  UniqueFd wake_fd_;
};

}  // namespace kvt
