#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"

namespace kvt {

enum class EventTiming : std::uint8_t { kOff, kOn };

// Role: a mark in a stream's queue, ours or the engine's, that can be asked for and waited for on the device.
// Ownership: owns the event and keeps its context.
// Threading: any thread. record and the calls that refer to it are ordered by the caller.
// Ordering: an event that was never recorded counts as reached, as CUDA has it; recording again replaces the mark.
class CudaEvent {
 public:
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept
      : context_(std::move(other.context_)), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent();

  static Status create(std::shared_ptr<const CudaContext> context, EventTiming timing, CudaEvent* out);

  const std::shared_ptr<const CudaContext>& context() const { return context_; }
  bool is_open() const { return event_ != nullptr; }

  // `stream` is a CUstream or cudaStream_t of the same device, as a number; 0 is the legacy default stream.
  Status record(std::uint64_t stream) const;
  Status record(const CudaStream& stream) const { return record(reinterpret_cast<std::uint64_t>(stream.handle())); }
  // Never blocks. kFailed sets `error`: the device or the work before the mark broke.
  EventProgress query(Status* error) const;
  // Makes what `stream` is given from now on wait, on the device. The stream may be another device's.
  Status wait_on(const CudaStream& stream) const;
  // Blocks. For tests, benches and closing.
  Status synchronize() const;
  // Both recorded with timing and reached.
  static Status elapsed_ms(const CudaEvent& from, const CudaEvent& to, float* out);

 private:
  std::shared_ptr<const CudaContext> context_;
  cuda::Event event_ = nullptr;
};

}  // namespace kvt
