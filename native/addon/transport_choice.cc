#include "addon/transport_choice.h"

#include <memory>
#include <utility>

#include "transport/host_transport.h"
#include "transport/nixl_transport.h"

namespace kvt {

namespace {

Status choose_base(const TransportChoice& choice, TransportFactory* out);

}  // namespace

Status choose_transport(const TransportChoice& choice, TransportFactory* out) {
  if (!choice.bounce) return choose_base(choice, out);
  BounceOptions options = *choice.bounce;
  const bool is_host = choice.kind == "host";
  options.link = is_host ? BounceLinkKind::kSocket : BounceLinkKind::kMessages;
  // The host transport's bytes are copied by the writer's own threads, which end before its sockets do.
  options.link_end_proves_end = is_host;
  TransportFactory base;
  Status status = choose_base(choice, &base);
  if (!status.is_ok()) return status;
  if (make_bounce_transport(nullptr, options, &status) == nullptr) return status;
  *out = [base, options](Status* error) -> std::unique_ptr<Transport> {
    std::unique_ptr<Transport> below = base(error);
    return below == nullptr ? nullptr : make_bounce_transport(std::move(below), options, error);
  };
  return Status::ok();
}

namespace {

Status choose_base(const TransportChoice& choice, TransportFactory* out) {
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

}  // namespace

}  // namespace kvt
