#include "addon/transport_choice.h"

#include <memory>
#include <utility>

#include "transport/host_transport.h"
#include "transport/nixl_transport.h"

namespace kvt {

Status choose_transport(const TransportChoice& choice, TransportFactory* out) {
  if (choice.kind == "host") {
    const HostOptions options{choice.link_gbps};
    Status status;
    if (make_host_transport(options, &status) == nullptr) return status;
    *out = [options](Status* error) { return make_host_transport(options, error); };
    return Status::ok();
  }
  if (choice.kind == "nixl") {
    if (choice.link_gbps) {
      return Status(StatusCode::kInvalidArgument, "linkGbps models a link for the host agent; nixl uses the real one");
    }
    NixlOptions options;
    options.agent_name = choice.agent_name;
    options.library_path = choice.nixl_library;
    options.package_tree = choice.nixl_package_tree;
    // On this thread, because JavaScript writes the environment here too.
    prepare_process_for_nixl();
    *out = [options](Status* error) { return make_nixl_transport(options, error); };
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument, "agent kind '" + choice.kind + "' is not host or nixl");
}

}  // namespace kvt
