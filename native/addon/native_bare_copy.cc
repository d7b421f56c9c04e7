#include "addon/native_bare_copy.h"

#include <limits>

#include "addon/arguments.h"
#include "addon/environment.h"
#include "addon/promise_worker.h"

namespace kvt {
namespace {

struct Nothing {};

int to_ordinal(const Napi::CallbackInfo& info, std::size_t index, const char* name) {
  const std::uint64_t value = to_size(info.Env(), to_number(info, index, name), name);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw_argument(info.Env(), "a GPU's number is expected");
  }
  return static_cast<int>(value);
}

}  // namespace

Napi::Function NativeBareCopy::define(Napi::Env env) {
  return DefineClass(env, "BareCopy",
                     {InstanceMethod<&NativeBareCopy::open>("open"), InstanceMethod<&NativeBareCopy::time>("time"),
                      InstanceMethod<&NativeBareCopy::close>("close")});
}

NativeBareCopy::NativeBareCopy(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  shared_->from = to_ordinal(info, 0, "from");
  shared_->to = to_ordinal(info, 1, "to");
  shared_->size = to_size(info.Env(), to_number(info, 2, "sizeBytes"), "sizeBytes");
  shared_->devices = environment_of(info.Env())->desk().devices();
}

Napi::Value NativeBareCopy::open(const Napi::CallbackInfo& info) {
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [shared = shared_](Nothing*) {
        const std::lock_guard lock(shared->mutex);
        std::shared_ptr<const CudaContext> from;
        std::shared_ptr<const CudaContext> to;
        Status status = shared->devices->get(shared->from, &from);
        if (status.is_ok()) status = shared->devices->get(shared->to, &to);
        return status.is_ok() ? BareCopy::open(from, to, shared->size, &shared->copy) : status;
      },
      [](Napi::Env env, const Nothing&) { return env.Undefined(); });
}

Napi::Value NativeBareCopy::time(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::size_t bytes = to_size(env, to_number(info, 0, "bytes"), "bytes");
  return PromiseWorker<BareCopy::Times>::run(
      env,
      [shared = shared_, bytes](BareCopy::Times* times) {
        const std::lock_guard lock(shared->mutex);
        return shared->copy == nullptr ? Status(StatusCode::kState, "the bare copy is not open")
                                       : shared->copy->time(bytes, times);
      },
      [](Napi::Env e, const BareCopy::Times& times) {
        auto out = Napi::Array::New(e, 2);
        out.Set(0U, Napi::Number::New(e, static_cast<double>(times.host_ns)));
        out.Set(1U, Napi::Number::New(e, times.device_us));
        return Napi::Value(out);
      });
}

Napi::Value NativeBareCopy::close(const Napi::CallbackInfo& info) {
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [shared = shared_](Nothing*) {
        const std::lock_guard lock(shared->mutex);
        shared->copy.reset();
        return Status::ok();
      },
      [](Napi::Env env, const Nothing&) { return env.Undefined(); });
}

}  // namespace kvt
