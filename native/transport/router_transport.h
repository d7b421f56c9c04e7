#pragma once

#include <memory>

#include "core/status.h"
#include "transport/path_options.h"
#include "transport/transport.h"

namespace kvt {

// One agent with several paths: host memory goes by `base`, device memory by whichever path reaches the peer and costs
// least. What each peer is told covers all of them.
std::unique_ptr<Transport> make_router_transport(std::unique_ptr<Transport> base, const RouterOptions& options);

// The path that a slice takes to a ready peer: the one place that decides it, for RouterTransport and for what explains
// it. `bounce`: this side's thresholds; null without an arena, or without a ticket.
DataPath path_of_slice(const PeerPaths& paths, bool is_device, std::span<const PlanGroup> groups,
                       const BounceThresholds* bounce);

}  // namespace kvt
