#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "addon/agent_session.h"
#include "addon/completion_pump.h"
#include "addon/device_desk.h"
#include "addon/napi_setup.h"

namespace kvt {

// Role: everything the addon keeps for one Node environment (the main thread or a worker). Nothing is shared between
//   environments, so two of them, or two copies of the addon, never meet.
// Threading: the JS thread of the environment.
// Lifetime: shut_down runs as an environment cleanup hook, registered after the pump was made and so called before Node
//   tears the pump's thread-safe function down.
class Environment {
 public:
  explicit Environment(Napi::Env env);

  const std::shared_ptr<CompletionPump>& pump() const { return pump_; }

  void add(std::shared_ptr<AgentSession> session) { sessions_.push_back(std::move(session)); }
  void remove(const AgentSession* session);
  // An event that any agent's submissions may wait for was settled by a call.
  void tell_events_changed() const;

  // A lease on whichever agent of this environment owns [address, address + size); throws naming `what` when none does.
  // `region`, where wanted, gets the region that the bytes lie in: nobody may touch them before having asked its kind.
  MemoryLease lease(Napi::Env env, std::uintptr_t address, std::size_t size, const char* what,
                    Region* region = nullptr) const;

  const DeviceDesk& desk() const { return desk_; }
  DeviceDesk& desk() { return desk_; }

 private:
  // Closes every agent within a second and ends their threads; what is stuck beyond that is left running on memory that
  // stays mapped.
  void shut_down();

  std::shared_ptr<CompletionPump> pump_;
  std::vector<std::shared_ptr<AgentSession>> sessions_;
  DeviceDesk desk_;
};

// The environment that `env` was loaded into; defined beside the addon's entry point.
Environment* environment_of(Napi::Env env);

}  // namespace kvt
