#include "engine/command_queue.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

namespace kvt {
namespace {

// About a quarter of a microsecond.
constexpr int kRests = 4;

void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

Status CommandQueue::open() {
  wake_fd_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake_fd_.is_open()) return Status::ok();
  return Status(StatusCode::kResource, std::string("eventfd failed: ") + std::strerror(errno));
}

void CommandQueue::push(Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  notify();
}

void CommandQueue::notify() {
  // One write is enough until the sleeper has read it; the system call is most of what a submission costs.
  if (is_signalled_.exchange(true)) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_fd_.get(), &one, sizeof one);
}

void CommandQueue::take(std::vector<Command>* out) {
  out->clear();
  if (is_signalled_.load()) {
    std::uint64_t count = 0;
    (void)!::read(wake_fd_.get(), &count, sizeof count);
    // Cleared before the commands are taken: whatever is pushed after that signals again.
    is_signalled_.store(false);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(commands_, *out);
}

void CommandQueue::sleep(int fd, std::optional<TimePoint> until) {
  // Who is awake all the time finds commands and descriptors by itself, without one more system call a turn. The other
  // thread of its core may be the one that it waits for.
  if (until && *until <= std::chrono::steady_clock::now()) {
    for (int i = 0; i < kRests; ++i) rest();
    return;
  }
  pollfd fds[2] = {{wake_fd_.get(), POLLIN, 0}, {fd, POLLIN, 0}};
  timespec timeout{};
  if (until) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*until - std::chrono::steady_clock::now());
    const std::int64_t nanos = std::max<std::int64_t>(left.count(), 0);
    timeout = {static_cast<std::time_t>(nanos / 1'000'000'000), static_cast<long>(nanos % 1'000'000'000)};
  }
  (void)::ppoll(fds, fd >= 0 ? 2 : 1, until ? &timeout : nullptr, nullptr);
}

}  // namespace kvt
