#pragma once

#include <memory>
#include <optional>

#include "core/status.h"
#include "transport/transport.h"

namespace kvt {

struct HostOptions {
  // Rate of one modelled link that all transfers of the agent share; none: as fast as memory.
  std::optional<double> link_gbps;
};

// The embedded agent of one machine: memory shared between processes, bytes copied by the calling thread. Null and
// `error` set when the options are wrong.
std::unique_ptr<Transport> make_host_transport(const HostOptions& options, Status* error);

}  // namespace kvt
