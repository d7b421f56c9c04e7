#include "device/cuda_stream.h"

namespace kvt {

Status CudaStream::create(std::shared_ptr<const CudaContext> context, StreamPriority priority, CudaStream* out) {
  const CudaApi& api = context->api();
  const CurrentContext current(*context);
  if (!current.status().is_ok()) return current.status();
  int least = 0;
  int greatest = 0;
  Status status = api.check(api.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  if (!status.is_ok()) return status;
  CudaStream made;
  // Non-blocking: the engine's legacy default stream must not order us, nor we it.
  status = api.check(api.cuStreamCreateWithPriority(&made.stream_, cuda::kStreamNonBlocking,
                                                    priority == StreamPriority::kLow ? least : greatest),
                     "cuStreamCreateWithPriority");
  if (!status.is_ok()) return status;
  made.context_ = std::move(context);
  *out = std::move(made);
  return Status::ok();
}

CudaStream::~CudaStream() {
  if (stream_ == nullptr) return;
  const CurrentContext current(*context_);
  (void)context_->api().cuStreamDestroy(stream_);
}

EventProgress CudaStream::query(Status* error) const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) {
    *error = current.status();
    return EventProgress::kFailed;
  }
  const cuda::Result result = context_->api().cuStreamQuery(stream_);
  if (result == cuda::kSuccess) return EventProgress::kReached;
  if (result == cuda::kErrorNotReady) return EventProgress::kPending;
  *error = context_->api().check(result, "cuStreamQuery");
  return EventProgress::kFailed;
}

Status CudaStream::synchronize() const {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  return context_->api().check(context_->api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace kvt
