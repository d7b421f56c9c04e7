#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "addon/napi_setup.h"

namespace kvt {

// Runs on the JS thread, inside a handle scope.
using Delivery = std::function<void(Napi::Env)>;

// Role: the one way from native threads to the JS thread of an environment. What is posted while JS is busy comes over
// in
//   one call.
// Threading: post from any thread, never blocks on JS; the rest on the JS thread.
// Ownership: shared by the environment and whoever posts; it outlives the environment harmlessly, because close() cuts
// it off. Lifetime: the thread-safe function is unreferenced, so it never keeps the process alive, unless a reply is
// awaited; it is
//   released exactly once, before the environment's own teardown of it.
class CompletionPump {
 public:
  static std::shared_ptr<CompletionPump> create(Napi::Env env);

  // Dropped after close().
  void post(Delivery delivery);

  // While at least one reply is awaited the event loop stays alive.
  void await_reply(Napi::Env env);
  void reply_came(Napi::Env env);

  // Idempotent. Nothing is delivered afterwards.
  void close();

 private:
  static void call_js(Napi::Env env, Napi::Function, CompletionPump* pump, void*);
  using Function = Napi::TypedThreadSafeFunction<CompletionPump, void, &CompletionPump::call_js>;

  void deliver(Napi::Env env);

  std::mutex mutex_;
  bool is_open_ = true;
  bool is_scheduled_ = false;  // a call is on its way that will take everything pending
  std::vector<Delivery> pending_;
  Function function_;
  std::size_t awaited_ = 0;
};

}  // namespace kvt
