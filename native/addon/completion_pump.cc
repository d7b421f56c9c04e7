#include "addon/completion_pump.h"

#include <utility>

namespace kvt {

std::shared_ptr<CompletionPump> CompletionPump::create(Napi::Env env) {
  auto pump = std::make_shared<CompletionPump>();
  pump->function_ = Function::New(env, "kv-transceiver", 0, 1, pump.get());
  pump->function_.Unref(env);
  return pump;
}

void CompletionPump::post(Delivery delivery) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_open_) return;
  pending_.push_back(std::move(delivery));
  if (is_scheduled_) return;
  // The queue is unbounded, so this fails only when the environment is being torn down; then nobody listens any more.
  is_scheduled_ = function_.NonBlockingCall() == napi_ok;
}

void CompletionPump::call_js(Napi::Env env, Napi::Function, CompletionPump* pump, void*) {
  // Without an environment this is the teardown emptying its queue; the pump may be gone.
  if (env != nullptr) pump->deliver(env);
}

void CompletionPump::deliver(Napi::Env env) {
  std::vector<Delivery> batch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch.swap(pending_);
    is_scheduled_ = false;
  }
  for (const Delivery& delivery : batch) {
    const Napi::HandleScope scope(env);
    try {
      delivery(env);
    } catch (const Napi::Error& error) {
      // A listener threw: report it as uncaught, as an event emitter would, and still deliver to the others.
      (void)napi_fatal_exception(env, error.Value());
    }
  }
}

void CompletionPump::await_reply(Napi::Env env) {
  if (awaited_++ == 0) function_.Ref(env);
}

void CompletionPump::reply_came(Napi::Env env) {
  if (--awaited_ == 0) function_.Unref(env);
}

void CompletionPump::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_open_) return;
    is_open_ = false;
    pending_.clear();
  }
  (void)function_.Abort();
}

}  // namespace kvt
