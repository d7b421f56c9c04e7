#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "addon/napi_setup.h"
#include "addon/open_devices.h"
#include "device/bare_copy.h"

namespace kvt {

// Role: a BareCopy as the JS object `BareCopy`; for `bench transfer`.
// Threading: the JS thread calls; libuv's pool runs, one call at a time.
class NativeBareCopy final : public Napi::ObjectWrap<NativeBareCopy> {
 public:
  static Napi::Function define(Napi::Env env);

  // (ordinal that writes, ordinal that is written, bytes)
  explicit NativeBareCopy(const Napi::CallbackInfo& info);

 private:
  struct Shared {
    int from = 0;
    int to = 0;
    std::size_t size = 0;
    std::shared_ptr<OpenDevices> devices;
    std::mutex mutex;
    std::unique_ptr<BareCopy> copy;
  };

  Napi::Value open(const Napi::CallbackInfo& info);
  // (bytes) -> promise of [nanoseconds of the host, microseconds of the GPU]
  Napi::Value time(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace kvt
