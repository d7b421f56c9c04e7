#pragma once

#include <memory>
#include <utility>

#include "addon/arguments.h"
#include "addon/native_agent.h"

namespace kvt {

// Role: a pending promise and the way of its settlement to the JS thread.
class NativeAgent::Reply {
 public:
  Reply(Napi::Env env, std::shared_ptr<CompletionPump> pump) : deferred_(env), pump_(std::move(pump)) {
    pump_->await_reply(env);
  }
  Napi::Promise promise() const { return deferred_.Promise(); }

  // From the progress thread. `convert` runs on the JS thread, and only when `status` is ok.
  template <typename Convert>
  static void settle(const std::shared_ptr<Reply>& reply, Status status, Convert convert) {
    reply->pump_->post([reply, status = std::move(status), convert = std::move(convert)](Napi::Env env) {
      reply->pump_->reply_came(env);
      if (status.is_ok()) {
        reply->deferred_.Resolve(convert(env));
      } else {
        reply->deferred_.Reject(to_error(env, status).Value());
      }
    });
  }

 private:
  Napi::Promise::Deferred deferred_;
  std::shared_ptr<CompletionPump> pump_;
};

}  // namespace kvt
