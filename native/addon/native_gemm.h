#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "addon/environment.h"
#include "addon/napi_setup.h"
#include "device/device_buffer_pool.h"
#include "device/gemm_workload.h"

namespace kvt {

// Role: src/agent/gemm-workload.ts's other half: the products of a model's prefill on one GPU, and pages written behind
//   them.
// Threading: the JS thread; everything that may wait for the driver runs on libuv's pool, one call at a time.
class NativeGemm final : public Napi::ObjectWrap<NativeGemm> {
 public:
  static Napi::Function define(Napi::Env env);

  // (ordinal, library or '', [layers, hidden, heads, kvHeads, headDim, intermediate, maxChunk, maxContext])
  explicit NativeGemm(const Napi::CallbackInfo& info);

 private:
  // What the threads of the pool share.
  struct Shared {
    int ordinal = 0;
    std::string library;
    GemmShape shape;
    std::shared_ptr<OpenDevices> devices;
    std::mutex mutex;  // held through each call into the workload
    std::unique_ptr<GemmWorkload> workload;
    std::mutex buffers_mutex;
    // Kept until the end: freeing device memory waits for everything that runs, the transfer behind a step included.
    std::optional<DeviceBufferPool> buffers;
  };
  struct Step;

  static Status run_step(Shared* shared, Step* step);
  // -> promise of [path of cuBLAS, its version]
  Napi::Value open(const Napi::CallbackInfo& info);
  // (chunk, before, then the arguments of any number of content jobs) -> promise, when all of it is queued, of {event,
  // bytes, done}. A rejection means that nothing of it runs any more; so does `done`.
  Napi::Value forward(const Napi::CallbackInfo& info);
  // -> promise. Waits for what was queued.
  Napi::Value close(const Napi::CallbackInfo& info);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace kvt
