#pragma once

#include <memory>

#include "core/status.h"
#include "transport/path_options.h"
#include "transport/transport.h"

namespace kvt {

// One agent with several paths: host memory goes by `base`, device memory by whichever path reaches the peer and costs
// least. What each peer is told covers all of them.
std::unique_ptr<Transport> make_router_transport(std::unique_ptr<Transport> base, const RouterOptions& options);

// The path `choice` leaves for a slice to a peer, cheapest first; false when there is none.
bool cheapest_path(const PeerPaths& paths, const SliceShape& shape, DataPath* out);

}  // namespace kvt
