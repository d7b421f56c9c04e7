#include "addon/transport_choice.h"

#include <memory>
#include <utility>

#include "transport/host_transport.h"
#include "transport/nixl_transport.h"
#include "transport/router_transport.h"

namespace kvt {

namespace {

Status read_path(const TransportChoice& choice, RouterOptions* out) {
  if (choice.path == "auto") {
    out->choice = PathChoice::kAuto;
  } else if (choice.path == "p2p") {
    out->choice = PathChoice::kP2p;
  } else if (choice.path == "rdma") {
    out->choice = PathChoice::kRdma;
  } else if (choice.path == "bounce") {
    if (!choice.bounce) {
      return Status(StatusCode::kCapability,
                    "path 'bounce': this agent has no bounce arena; give it one with kvCacheBounceSizeMb (the option "
                    "bounce.sizeBytes of createAgent)");
    }
    out->choice = PathChoice::kBounce;
  } else {
    return Status(StatusCode::kInvalidArgument, "path '" + choice.path + "' is not auto, p2p, rdma or bounce");
  }
  out->device = choice.device;
  out->notes = choice.notes;
  if (choice.copy_blocks != 0) out->copy_blocks = choice.copy_blocks;
  out->base_reaches_devices = choice.kind == "nixl";
  if (out->choice == PathChoice::kRdma && !out->base_reaches_devices) {
    return Status(StatusCode::kInvalidArgument, "path 'rdma' needs the nixl agent");
  }
  return Status::ok();
}

// Where an agent's pages are, its arena is: on its GPU, where NIXL reaches that.
Status read_bounce(const TransportChoice& choice, RouterOptions* router, std::optional<BounceOptions>* out) {
  if (!choice.bounce) return Status::ok();
  if (router->choice == PathChoice::kP2p || router->choice == PathChoice::kRdma) {
    return Status(StatusCode::kInvalidArgument,
                  "path '" + choice.path + "' allows that path only; use auto or bounce, or leave bounce out");
  }
  BounceOptions options = *choice.bounce;
  const bool is_host = choice.kind == "host";
  options.link = is_host ? BounceLinkKind::kSocket : BounceLinkKind::kMessages;
  // The host transport's bytes are copied by the writer's own threads, which end before its sockets do.
  options.link_end_proves_end = is_host;
  if (router->choice == PathChoice::kBounce) options.is_forced = true;
  if (!is_host && choice.device) options.arena_device = router->arena_device = *choice.device;
  Status status;
  if (make_bounce_transport(nullptr, options, &status) == nullptr) return status;
  router->bounce = thresholds_of(options);
  *out = options;
  return status;
}

// The router above decides what is bounced.
BounceOptions taking_all(BounceOptions options) {
  options.is_forced = true;
  return options;
}

// Every path over `base`: the bounce path next to what it does itself, and above both what reaches device memory.
TransportFactory with_paths(TransportFactory base, std::optional<BounceOptions> bounce, const RouterOptions& options) {
  return [base = std::move(base), bounce, options](Status* error) -> std::unique_ptr<Transport> {
    std::unique_ptr<Transport> made = base(error);
    if (made != nullptr && bounce) made = make_bounce_transport(std::move(made), taking_all(*bounce), error);
    return made == nullptr ? nullptr : make_router_transport(std::move(made), options);
  };
}

}  // namespace

Status choose_transport(const TransportChoice& choice, TransportFactory* out) {
  RouterOptions router;
  if (choice.kind == "host" || choice.kind == "nixl") {
    if (Status status = read_path(choice, &router); !status.is_ok()) return status;
  }
  std::optional<BounceOptions> bounce;
  if (Status status = read_bounce(choice, &router, &bounce); !status.is_ok()) return status;
  if (choice.kind == "host") {
    const HostOptions options{choice.link_gbps};
    Status status;
    if (make_host_transport(options, &status) == nullptr) return status;
    *out = with_paths([options](Status* error) { return make_host_transport(options, error); }, bounce, router);
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
    options.probes = true;
    // On this thread, because JavaScript writes the environment here too.
    prepare_process_for_nixl();
    *out = with_paths([options](Status* error) { return make_nixl_transport(options, error); }, bounce, router);
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument, "agent kind '" + choice.kind + "' is not host or nixl");
}

}  // namespace kvt
