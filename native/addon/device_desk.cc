#include "addon/device_desk.h"

#include <utility>

#include "device/cuda_event.h"

namespace kvt {

Status DeviceDesk::record(int ordinal, std::uint64_t stream, std::uint32_t* event) {
  std::shared_ptr<const CudaContext> context = devices_->find(ordinal);
  if (context == nullptr) {
    return Status(StatusCode::kState, "GPU " + std::to_string(ordinal) + " was not opened in this thread");
  }
  CudaEvent mark;
  Status status = CudaEvent::create(std::move(context), EventTiming::kOff, &mark);
  if (status.is_ok()) status = mark.record(stream);
  if (!status.is_ok()) return status;
  *event = keep_event(std::move(mark));
  return status;
}

}  // namespace kvt
