#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "core/unique_fd.h"
#include "transport/transport.h"

namespace kvt {

// One process of one boot of one machine; never the name of another, although numbers come again.
struct ProcessIdentity {
  std::array<std::byte, 16> boot_id{};
  std::uint64_t pid_namespace = 0;  // inode
  std::uint64_t start_time = 0;     // ticks since boot
  std::uint32_t pid = 0;

  bool operator==(const ProcessIdentity&) const = default;
};

Status own_identity(ProcessIdentity* out);

// Role: tells when processes of this machine have ended, which is the proof that none of their copies or kernels writes
//   any more. A socket that closed is no such proof: after a kill -9 kernels went on for 9 to 13 ms, while the process
//   still ended; the process's own descriptor became readable 42 ms after the last write at the earliest (24 kills, two
//   H200).
// Threading: the progress thread.
// Ownership: borrows the epoll descriptor, which outlives it; events carry kEventBit and the watch.
class ProcessWatcher {
 public:
  explicit ProcessWatcher(int epoll) : epoll_(epoll) {}

  static constexpr std::uint64_t kEventBit = std::uint64_t{1} << 62;

  // A process that has ended already is told as well. kCapability when it cannot be watched from here; kState when the
  // watch exists.
  Status add(WatchId watch, const ProcessIdentity& process);
  void remove(WatchId watch) { watched_.erase(watch); }
  // The process of this watch has ended.
  void on_event(WatchId watch, TimePoint now);
  // Those whose grace is over. Appends.
  void take_ended(TimePoint now, std::vector<WatchId>* out);
  std::optional<TimePoint> next_deadline() const;

 private:
  struct Watched {
    UniqueFd pidfd;
    std::optional<TimePoint> told_at;  // its process has ended
  };

  int epoll_;
  std::unordered_map<WatchId, Watched> watched_;
};

}  // namespace kvt
