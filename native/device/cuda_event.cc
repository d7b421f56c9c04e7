#include "device/cuda_event.h"

namespace kvt {

Status CudaEvent::create(std::shared_ptr<const CudaContext> context, EventTiming timing, CudaEvent* out) {
  const CudaApi& api = context->api();
  const CurrentContext current(*context);
  if (!current.status().is_ok()) return current.status();
  CudaEvent made;
  // Without timing, recording and waiting cost the device less.
  const unsigned flags = timing == EventTiming::kOn ? cuda::kEventDefault : cuda::kEventDisableTiming;
  Status status = api.check(api.cuEventCreate(&made.event_, flags), "cuEventCreate");
  if (!status.is_ok()) return status;
  made.context_ = std::move(context);
  *out = std::move(made);
  return Status::ok();
}

CudaEvent::~CudaEvent() {
  if (event_ == nullptr) return;
  const CurrentContext current(*context_);
  (void)context_->api().cuEventDestroy(event_);
}

Status CudaEvent::record(std::uint64_t stream) const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the engine gives its streams as numbers
  const auto handle = reinterpret_cast<cuda::Stream>(stream);
  return context_->api().check(context_->api().cuEventRecord(event_, handle), "cuEventRecord");
}

EventProgress CudaEvent::query(Status* error) const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) {
    *error = current.status();
    return EventProgress::kFailed;
  }
  const cuda::Result result = context_->api().cuEventQuery(event_);
  if (result == cuda::kSuccess) return EventProgress::kReached;
  if (result == cuda::kErrorNotReady) return EventProgress::kPending;
  *error = context_->api().check(result, "cuEventQuery");
  return EventProgress::kFailed;
}

Status CudaEvent::wait_on(const CudaStream& stream) const {
  const CudaApi& api = context_->api();
  const CurrentContext current(*stream.context());
  if (!current.status().is_ok()) return current.status();
  return api.check(api.cuStreamWaitEvent(stream.handle(), event_, 0), "cuStreamWaitEvent");
}

Status CudaEvent::synchronize() const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  return context_->api().check(context_->api().cuEventSynchronize(event_), "cuEventSynchronize");
}

Status CudaEvent::elapsed_ms(const CudaEvent& from, const CudaEvent& to, float* out) {
  const CudaApi& api = to.context_->api();
  const CurrentContext current(*to.context_);
  if (!current.status().is_ok()) return current.status();
  return api.check(api.cuEventElapsedTime(out, from.event_, to.event_), "cuEventElapsedTime");
}

}  // namespace kvt
