#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/status.h"
#include "engine/agent_engine.h"
#include "transport/bounce_transport.h"

namespace kvt {

struct TransportChoice {
  std::string kind;  // "host" or "nixl"
  std::string agent_name;
  std::optional<double> link_gbps;  // host
  std::string nixl_library;         // nixl; empty = search
  std::string nixl_package_tree;    // nixl; empty = none
  std::string path;                 // "auto", "p2p", "rdma" or "bounce"
  std::optional<int> device;        // opened with the agent; absent = by the first device pool
  unsigned copy_blocks = 0;         // of one p2p copy; 0 = default
  std::optional<BounceOptions> bounce;
  std::shared_ptr<NoteGauges> notes;
};

// Makes the factory that the progress thread will call. Wrong options are refused here; what the machine lacks shows
// when the agent opens.
Status choose_transport(const TransportChoice& choice, TransportFactory* out);

}  // namespace kvt
