#pragma once

#include <memory>
#include <utility>

#include "engine/agent_engine.h"
#include "transport/region_table.h"

namespace kvt {

// What an environment knows of one agent. JS thread.
struct AgentSession {
  std::shared_ptr<AgentEngine> engine;
  RegionTable regions;  // allocated and registered so far
};

// Keeps the memory of one agent mapped while the lease lives. Any thread.
class MemoryLease {
 public:
  // Empty when the agent is closing.
  static MemoryLease of(const std::shared_ptr<AgentEngine>& engine) {
    MemoryLease lease;
    if (engine->leases().acquire()) lease.engine_ = engine;
    return lease;
  }

  MemoryLease() = default;
  MemoryLease(MemoryLease&&) noexcept = default;
  MemoryLease& operator=(MemoryLease&& other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }
  MemoryLease(const MemoryLease&) = delete;
  MemoryLease& operator=(const MemoryLease&) = delete;
  ~MemoryLease() {
    if (engine_ != nullptr) engine_->leases().release();
  }

  bool is_held() const { return engine_ != nullptr; }

 private:
  std::shared_ptr<AgentEngine> engine_;
};

}  // namespace kvt
