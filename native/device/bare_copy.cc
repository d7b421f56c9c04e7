#include "device/bare_copy.h"

#include <chrono>
#include <string>
#include <utility>

namespace kvt {
namespace {

using Clock = std::chrono::steady_clock;

// Some gigabytes take tens of milliseconds on the slowest link.
constexpr auto kLimit = std::chrono::seconds(10);

}  // namespace

Status BareCopy::open(std::shared_ptr<const CudaContext> from, std::shared_ptr<const CudaContext> to, std::size_t size,
                      std::unique_ptr<BareCopy>* out) {
  std::unique_ptr<BareCopy> made(new BareCopy());
  // Plain: memory of the other making would have to be mapped a second time to be reached from the other GPU.
  Status status = DevicePool::allocate(from, size, &made->source_, PoolMaking::kPlain);
  if (status.is_ok()) status = DevicePool::allocate(std::move(to), size, &made->destination_, PoolMaking::kPlain);
  if (status.is_ok()) {
    const DevicePool& destination = *made->destination_;
    status = PeerMapping::open_own(from, destination.base(), destination.handle(), &made->mapping_);
  }
  // As the agents' copies: a transfer yields to the engine's kernels.
  if (status.is_ok()) status = CudaStream::create(from, StreamPriority::kLow, &made->stream_);
  if (status.is_ok()) status = CudaEvent::create(from, EventTiming::kOn, &made->begin_);
  if (status.is_ok()) status = CudaEvent::create(from, EventTiming::kOn, &made->end_);
  if (status.is_ok()) *out = std::move(made);
  return status;
}

Status BareCopy::time(std::size_t bytes, Times* out) const {
  if (bytes == 0 || bytes > source_->size()) {
    return Status(StatusCode::kInvalidArgument, "a bare copy of " + std::to_string(bytes) +
                                                    " bytes was asked for; 1 to " + std::to_string(source_->size()) +
                                                    " are there");
  }
  const CudaContext& context = *stream_.context();
  const CurrentContext current(context);
  if (!current.status().is_ok()) return current.status();
  Status status = begin_.record(stream_);
  const auto begin = Clock::now();
  if (status.is_ok()) {
    status =
        context.api().check(context.api().cuMemcpyDtoDAsync(mapping_->base(), source_->base(), bytes, stream_.handle()),
                            "cuMemcpyDtoDAsync");
  }
  if (status.is_ok()) status = end_.record(stream_);
  if (!status.is_ok()) return status;
  EventProgress progress = EventProgress::kPending;
  // Asked without a pause: a thread that sleeps until the end would count its own waking up.
  while (progress == EventProgress::kPending && Clock::now() - begin < kLimit) progress = end_.query(&status);
  const auto end = Clock::now();
  if (progress == EventProgress::kFailed) return status;
  if (progress == EventProgress::kPending) {
    return Status(StatusCode::kTransport, "a bare copy of " + std::to_string(bytes) + " bytes did not end in 10 s");
  }
  float milliseconds = 0;
  status = CudaEvent::elapsed_ms(begin_, end_, &milliseconds);
  out->host_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
  out->device_us = static_cast<double>(milliseconds) * 1000;
  return status;
}

}  // namespace kvt
