#include "transport/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "transport/host_metadata.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace kvt {
namespace {

// Between a process's end and the word of it: the driver may finish a dead process's files in a thread of its own.
constexpr auto kGrace = std::chrono::milliseconds(20);

// Field 22 of /proc/PID/stat; nothing, with errno set, when it cannot be read, for whatever reason. The name in field 2
// may hold blanks and brackets, so the count starts behind it.
std::optional<std::uint64_t> start_time_of(const std::string& pid) {
  const UniqueFd file(::open(("/proc/" + pid + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::array<char, 4096> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) return std::nullopt;
  errno = EPROTO;
  const std::string line(text.data(), static_cast<std::size_t>(size));
  const std::size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  std::uint64_t start = 0;
  if (!(fields >> start)) return std::nullopt;
  return start;
}

bool has_ended(const UniqueFd& pidfd) {
  pollfd waited{pidfd.get(), POLLIN, 0};
  return ::poll(&waited, 1, 0) == 1 && (waited.revents & POLLIN) != 0;
}

Status cannot(const std::string& why) {
  return {StatusCode::kCapability, "the end of the peer's process cannot be told from here: " + why};
}

}  // namespace

Status own_identity(ProcessIdentity* out) {
  ProcessIdentity made;
  Status status = read_boot_id(&made.boot_id);
  if (!status.is_ok()) return status;
  struct stat space {};
  const std::optional<std::uint64_t> start = start_time_of("self");
  if (::stat("/proc/self/ns/pid", &space) != 0 || !start) {
    return {StatusCode::kCapability, "/proc does not describe this process"};
  }
  made.pid_namespace = space.st_ino;
  made.start_time = *start;
  made.pid = static_cast<std::uint32_t>(::getpid());
  *out = made;
  return Status::ok();
}

Status ProcessWatcher::add(WatchId watch, const ProcessIdentity& process) {
  ProcessIdentity self;
  Status status = own_identity(&self);
  if (!status.is_ok()) return status;
  if (process.boot_id != self.boot_id) return cannot("it runs on another machine");
  if (process.pid == 0 || process.pid_namespace != self.pid_namespace) {
    return cannot("it runs in another process namespace");
  }
  if (watched_.contains(watch)) return {StatusCode::kState, "watch " + std::to_string(watch) + " exists already"};
  const TimePoint now = std::chrono::steady_clock::now();
  Watched made;
  made.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0U)));
  if (!made.pidfd.is_open() && errno != ESRCH) {
    return cannot(std::string("pidfd_open failed: ") + std::strerror(errno));
  }
  bool ended = !made.pidfd.is_open();
  if (!ended) {
    // Asked with the descriptor in hand: what it names cannot change any more. An entry that cannot be read (no
    // descriptor left, a /proc that hides others' processes) says nothing: only the descriptor can then prove the end.
    const std::optional<std::uint64_t> start = start_time_of(std::to_string(process.pid));
    const int why = errno;
    // Another's start time: the number was given away, which only happens after the end.
    ended = has_ended(made.pidfd) || (start && *start != process.start_time);
    if (!ended && !start) return cannot(std::string("its /proc entry cannot be read: ") + std::strerror(why));
  }
  if (ended) {
    made.pidfd.reset();
    made.told_at = now + kGrace;
  } else {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kEventBit | watch;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, made.pidfd.get(), &event) != 0) {
      return cannot(std::string("epoll_ctl failed: ") + std::strerror(errno));
    }
  }
  watched_.emplace(watch, std::move(made));
  return Status::ok();
}

void ProcessWatcher::on_event(WatchId watch, TimePoint now) {
  const auto entry = watched_.find(watch);
  if (entry == watched_.end() || entry->second.told_at) return;
  entry->second.pidfd.reset();
  entry->second.told_at = now + kGrace;
}

void ProcessWatcher::take_ended(TimePoint now, std::vector<WatchId>* out) {
  for (auto entry = watched_.begin(); entry != watched_.end();) {
    if (!entry->second.told_at || now < *entry->second.told_at) {
      ++entry;
      continue;
    }
    out->push_back(entry->first);
    entry = watched_.erase(entry);
  }
}

std::optional<TimePoint> ProcessWatcher::next_deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& [watch, watched] : watched_) {
    if (watched.told_at && (!earliest || *watched.told_at < *earliest)) earliest = watched.told_at;
  }
  return earliest;
}

}  // namespace kvt
