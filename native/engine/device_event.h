#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "device/cuda_event.h"
#include "device/refused_queries.h"
#include "engine/ready_event.h"

namespace kvt {

// Role: the end of a forward step as a submission's event: what the engine's stream has reached.
// Threading: any thread asks; recorded before it is handed to a submission, and not again while one waits for it.
class DeviceEvent final : public ReadyEvent {
 public:
  explicit DeviceEvent(CudaEvent event) : event_(std::move(event)) {}

  EventState state() const override {
    const EventState known = state_.load(std::memory_order_acquire);
    if (known != EventState::kPending) return known;
    // One thread asks the driver at a time; the text is written before the state that announces it.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_.load(std::memory_order_relaxed) != EventState::kPending) return state_.load(std::memory_order_relaxed);
    Status error;
    const EventProgress answer = event_.query(&error);
    switch (refused_.judge(answer, error)) {
      case EventProgress::kPending:
        return EventState::kPending;
      case EventProgress::kReached:
        state_.store(EventState::kReached, std::memory_order_release);
        return EventState::kReached;
      case EventProgress::kFailed:
        break;
    }
    failure_ = std::move(error);
    state_.store(EventState::kFailed, std::memory_order_release);
    return EventState::kFailed;
  }

  EventState known_state() const override { return state_.load(std::memory_order_acquire); }

  // The work before it failed in a way that the device does not know of. Changes nothing once it has settled, which is
  // when somebody was told so: what its stream has passed meanwhile fails all the same.
  void fail(std::string message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_.load(std::memory_order_relaxed) != EventState::kPending) return;
    failure_ = Status(StatusCode::kTransport, std::move(message));
    state_.store(EventState::kFailed, std::memory_order_release);
  }

  const Status& failure() const override { return failure_; }
  const CudaEvent* device_event() const override { return &event_; }

 private:
  CudaEvent event_;
  mutable std::mutex mutex_;
  mutable std::atomic<EventState> state_{EventState::kPending};
  mutable RefusedQueries refused_;
  mutable Status failure_;
};

}  // namespace kvt
