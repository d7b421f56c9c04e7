#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

namespace kvt {

// Role: keeps an agent's regions mapped while someone outside the progress thread touches them.
// Threading: any thread.
// Invariant: after close() no lease is granted; regions are unmapped only when the count is then zero.
class MemoryLeases {
 public:
  // `released` is called, on whichever thread, when the last lease ends after close().
  explicit MemoryLeases(std::function<void()> released) : released_(std::move(released)) {}

  // False when the agent is closing: its memory must not be touched.
  bool acquire() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return false;
    ++count_;
    return true;
  }

  void release() {
    bool is_last = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_last = --count_ == 0 && is_closed_;
    }
    if (is_last) released_();
  }

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }

  std::size_t count() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }

 private:
  mutable std::mutex mutex_;
  std::size_t count_ = 0;
  bool is_closed_ = false;
  std::function<void()> released_;
};

}  // namespace kvt
