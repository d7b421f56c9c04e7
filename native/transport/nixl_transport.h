#pragma once

#include <memory>

#include "core/status.h"
#include "transport/nixl_library.h"
#include "transport/nixl_options.h"
#include "transport/transport.h"

namespace kvt {

// A transport over NIXL's UCX backend. Loads the library; the agent itself is created by open().
// Null with `error` set when no usable NIXL is found (kCapability, ends with the remedy) or the name cannot be used.
std::unique_ptr<Transport> make_nixl_transport(const NixlOptions& options, Status* error);

// The same over a library that the caller opened, which must outlive the transport.
std::unique_ptr<Transport> make_nixl_transport(const nixl::Library& library, const NixlOptions& options, Status* error);

}  // namespace kvt
