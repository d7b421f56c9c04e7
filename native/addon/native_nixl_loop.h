#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "addon/agent_session.h"
#include "addon/napi_setup.h"
#include "addon/open_devices.h"
#include "transport/nixl_loop.h"

namespace kvt {

// Role: a NixlLoop as the JS object `NixlLoop`; for `bench transfer`.
// Threading: the JS thread calls; libuv's pool runs, one call at a time.
// Ownership: the source's pool cannot go before close().
class NativeNixlLoop final : public Napi::ObjectWrap<NativeNixlLoop> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit NativeNixlLoop(const Napi::CallbackInfo& info);

 private:
  struct Shared {
    std::mutex mutex;
    NixlOptions options;
    std::shared_ptr<OpenDevices> devices;
    MemoryLease source;
    NixlLoop loop;
  };

  Napi::Value open(const Napi::CallbackInfo& info);
  Napi::Value time(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace kvt
