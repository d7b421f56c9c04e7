#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "core/status.h"

namespace kvt {

class CudaEvent;

enum class EventState : std::uint8_t { kPending, kReached, kFailed };

// Role: what a submission waits for. The progress thread asks for its state; nobody ever blocks on it.
class ReadyEvent {
 public:
  virtual ~ReadyEvent() = default;
  ReadyEvent() = default;
  ReadyEvent(const ReadyEvent&) = delete;
  ReadyEvent& operator=(const ReadyEvent&) = delete;

  // Final once it is not kPending. Any thread.
  virtual EventState state() const = 0;
  // The same without asking a device, so that it may lag behind; for looks that come often.
  virtual EventState known_state() const { return state(); }
  // Why it failed. Only after state() said kFailed.
  virtual const Status& failure() const = 0;
  // A mark in a device's queue, that a device can wait for and that nobody settles by a call; null for others.
  virtual const CudaEvent* device_event() const { return nullptr; }
};

// An event that a thread of this process settles, once; later calls change nothing.
// Threading: one thread settles, any thread asks. Whoever settles it then calls AgentEngine::events_changed.
class HostEvent final : public ReadyEvent {
 public:
  void signal() { settle(EventState::kReached); }
  void fail(std::string message) {
    if (state() != EventState::kPending) return;
    failure_ = Status(StatusCode::kTransport, std::move(message));  // published by the store below
    settle(EventState::kFailed);
  }

  EventState state() const override { return state_.load(std::memory_order_acquire); }
  const Status& failure() const override { return failure_; }

 private:
  void settle(EventState to) {
    if (state() == EventState::kPending) state_.store(to, std::memory_order_release);
  }

  std::atomic<EventState> state_{EventState::kPending};
  Status failure_;
};

}  // namespace kvt
