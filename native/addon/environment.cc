#include "addon/environment.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "addon/arguments.h"

namespace kvt {
namespace {

constexpr auto kShutDownLimit = std::chrono::seconds(1);
// Beyond the deadline that the agents were given: how long the thread itself may take to end.
constexpr auto kThreadEndLimit = std::chrono::milliseconds(250);

}  // namespace

Environment::Environment(Napi::Env env) : pump_(CompletionPump::create(env)) {
  env.AddCleanupHook([this] { shut_down(); });
}

void Environment::remove(const AgentSession* session) {
  std::erase_if(sessions_, [session](const auto& held) { return held.get() == session; });
}

void Environment::tell_events_changed() const {
  for (const auto& session : sessions_) session->engine->push(EventsChanged{});
}

MemoryLease Environment::lease(Napi::Env env, std::uintptr_t address, std::size_t size, const char* what,
                               Region* region) const {
  for (const std::shared_ptr<AgentSession>& session : sessions_) {
    const Region* found = session->regions.find(address, size);
    if (found == nullptr) continue;
    if (region != nullptr) *region = *found;
    MemoryLease lease = MemoryLease::of(session->engine);
    if (!lease.is_held()) throw_status(env, Status(StatusCode::kState, std::string(what) + ": the agent was closed"));
    return lease;
  }
  throw_argument(env, std::string(what) + ": " + std::to_string(size) + " bytes at " + std::to_string(address) +
                          " are not inside a pool of an agent of this thread");
}

void Environment::shut_down() {
  const auto deadline = std::chrono::steady_clock::now() + kShutDownLimit;
  for (const auto& session : sessions_) session->engine->push(CloseAgent{deadline, [](const CloseReport&) {}});
  for (const auto& session : sessions_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    (void)session->engine->wait_closed(std::max(left, std::chrono::milliseconds(0)) + kThreadEndLimit);
  }
  sessions_.clear();
  pump_->close();
}

}  // namespace kvt
