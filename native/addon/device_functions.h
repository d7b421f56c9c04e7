#pragma once

#include "addon/environment.h"
#include "addon/napi_setup.h"

namespace kvt {

// GPUs, streams and events for src/agent/cuda-*.ts. Streams are known by their CUstream as a number, events by a number
// of this environment.

// (ordinal) -> promise; the other functions need it to have been kept.
Napi::Value open_device(const Napi::CallbackInfo& info, Environment* environment);
// (ordinal, isHigh) -> promise of the stream
Napi::Value create_stream(const Napi::CallbackInfo& info, Environment* environment);
// (stream)
void close_stream(const Napi::CallbackInfo& info, Environment* environment);
// (stream, address, length, rounds): queues `rounds` writes of zeros to device memory of an agent of this environment
// and returns. Whoever asks keeps the pool until the stream has passed them.
void clear_memory(const Napi::CallbackInfo& info, Environment* environment);
// (ordinal, stream) -> event. Queued behind what the stream has now.
Napi::Value record_device_event(const Napi::CallbackInfo& info, Environment* environment);
// (event) -> EventState, or the text of its failure. Never waits.
Napi::Value query_device_event(const Napi::CallbackInfo& info, Environment* environment);
// (event, message)
void fail_device_event(const Napi::CallbackInfo& info, Environment* environment);
// (event)
void release_device_event(const Napi::CallbackInfo& info, Environment* environment);

// (address, length) -> promise of a copy; (address, bytes) -> promise. Host or device memory of any agent of this
// environment, on a thread of the pool.
Napi::Value read_memory(const Napi::CallbackInfo& info, const Environment& environment);
Napi::Value write_memory(const Napi::CallbackInfo& info, const Environment& environment);

}  // namespace kvt
