#pragma once

#include <memory>

#include "core/status.h"
#include "transport/path_options.h"
#include "transport/transport.h"

namespace kvt {

// One agent with several paths: host memory goes by `base`, device memory by whichever path reaches the peer and costs
// least. What each peer is told covers all of them.
std::unique_ptr<Transport> make_router_transport(std::unique_ptr<Transport> base, const RouterOptions& options);

// The path that a slice of a receive takes to a ready peer: what RouterTransport and the bounce path below it do with
// it. `bounce`: this side's thresholds; null without an arena.
DataPath path_of_slice(const PeerPaths& paths, bool is_device, std::span<const PlanGroup> groups,
                       const BounceThresholds* bounce);

// The cheapest path of a slice of device memory to a peer; false when there is none.
bool cheapest_path(const PeerPaths& paths, const SliceShape& shape, DataPath* out);

}  // namespace kvt
