#pragma once

#include <utility>

#include "device/cuda_event.h"
#include "device/cuda_stream.h"
#include "device/refused_queries.h"

namespace kvt {

// Role: says when a stream has run what was queued on it so far.
// Why: what is queued cannot be taken back, so that a driver which refuses one more call must not make its end
//   unknowable: where the event cannot be recorded the stream itself is asked, which is later at worst.
// Ownership: owns the event; the stream outlives the mark.
// Threading: one thread.
class StreamMark {
 public:
  StreamMark() = default;
  explicit StreamMark(CudaEvent event) : event_(std::move(event)) {}

  void set(const CudaStream& stream) { unmarked_ = event_.record(stream).is_ok() ? nullptr : &stream; }
  // After set(). Never blocks. kFailed: the device is lost, or refuses to be asked; nothing says that its work ended.
  // `error` is set whenever the driver refused.
  EventProgress query(Status* error, RefusedQueries* refused) const {
    const EventProgress answer = unmarked_ == nullptr ? event_.query(error) : unmarked_->query(error);
    return refused->judge(answer, *error);
  }
  // Makes what `stream` is given from now on wait, so that slices share multiprocessors. Does nothing for a mark that
  // could not be recorded: no order that bytes rest on may come from here.
  Status wait_on(const CudaStream& stream) const {
    return unmarked_ == nullptr ? event_.wait_on(stream) : Status::ok();
  }

  bool is_open() const { return event_.is_open(); }
  // To be used again, once it was reached.
  CudaEvent take_event() { return std::move(event_); }

 private:
  CudaEvent event_;
  const CudaStream* unmarked_ = nullptr;
};

}  // namespace kvt
