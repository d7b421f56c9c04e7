#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/status.h"
#include "device/cuda_context.h"

namespace kvt {

// Low: yields multiprocessors to the engine's kernels. Transfers run there.
enum class StreamPriority : std::uint8_t { kLow, kHigh };

enum class EventProgress : std::uint8_t { kPending, kReached, kFailed };

// Role: an ordered queue of device work of our own.
// Ownership: owns the stream and keeps its context. Destroying it does not wait: what was queued still runs.
// Threading: any thread; one at a time where order matters.
class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept
      : context_(std::move(other.context_)), stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream();

  static Status create(std::shared_ptr<const CudaContext> context, StreamPriority priority, CudaStream* out);

  const std::shared_ptr<const CudaContext>& context() const { return context_; }
  cuda::Stream handle() const { return stream_; }
  bool is_open() const { return stream_ != nullptr; }

  // Whether everything queued so far has run. Never blocks. kFailed sets `error`: the device or its work broke.
  EventProgress query(Status* error) const;
  // Blocks until everything queued so far has run: for tests, benches and closing, never for a thread that others wait
  // for.
  Status synchronize() const;

 private:
  std::shared_ptr<const CudaContext> context_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace kvt
