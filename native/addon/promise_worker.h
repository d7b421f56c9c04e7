#pragma once

#include <functional>
#include <utility>

#include "addon/arguments.h"
#include "addon/napi_setup.h"

namespace kvt {

// Runs `work` on libuv's pool and settles a promise with what `convert` makes of its result, or with the error of its
// status. `work` must own, and by
// its end have given back, every lease it needs: the JS thread may be tearing the environment down meanwhile.
template <typename Result>
class PromiseWorker final : public Napi::AsyncWorker {
 public:
  using Work = std::function<Status(Result*)>;
  using Convert = std::function<Napi::Value(Napi::Env, const Result&)>;

  static Napi::Promise run(Napi::Env env, Work work, Convert convert) {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): an AsyncWorker deletes itself
    auto* worker = new PromiseWorker(env, std::move(work), std::move(convert));
    const Napi::Promise promise = worker->deferred_.Promise();
    worker->Queue();
    return promise;
  }

 protected:
  void Execute() override {
    status_ = work_(&result_);
    work_ = nullptr;
  }
  void OnOK() override {
    if (status_.is_ok()) {
      deferred_.Resolve(convert_(Env(), result_));
    } else {
      deferred_.Reject(to_error(Env(), status_).Value());
    }
  }
  void OnError(const Napi::Error& error) override {
    deferred_.Reject(to_error(Env(), Status(StatusCode::kInternal, error.Message())).Value());
  }

 private:
  PromiseWorker(Napi::Env env, Work work, Convert convert)
      : Napi::AsyncWorker(env), deferred_(env), work_(std::move(work)), convert_(std::move(convert)) {}

  Napi::Promise::Deferred deferred_;
  Work work_;
  Convert convert_;
  Status status_;
  Result result_{};
};

}  // namespace kvt
