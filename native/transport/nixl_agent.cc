#include "transport/nixl_agent.h"

#include <cstdint>

namespace kvt::nixl {
namespace {

int memory_type(MemoryKind kind) { return kind == MemoryKind::kDevice ? kVram : kDram; }

std::uint64_t device_id(const Region& region) {
  return region.kind == MemoryKind::kDevice ? static_cast<std::uint64_t>(region.device) : 0;
}

std::string with_code(std::string text, int code) {
  return std::move(text) + " (NIXL status " + std::to_string(code) + ")";
}

// UCX sends a notification eagerly; larger ones need not fit into what every transport sends so.
constexpr std::size_t kMaxNotificationBytes = 4096;
// What peers send must not pile up here either.
constexpr std::size_t kMaxNotifications = 65536;

}  // namespace

// One side of a transfer; freed when the request, which copies it, was made.
class NixlAgent::DescriptorList {
 public:
  DescriptorList(const Api& api, MemoryKind kind) : api_(api) {
    if (api_.create_xfer_dlist(memory_type(kind), &list_) != kSuccess) list_ = nullptr;
  }
  ~DescriptorList() {
    if (list_ != nullptr) api_.destroy_xfer_dlist(list_);
  }
  DescriptorList(const DescriptorList&) = delete;
  DescriptorList& operator=(const DescriptorList&) = delete;

  bool add(std::uintptr_t address, std::size_t size, const Region& region) {
    return list_ != nullptr && api_.xfer_dlist_add_desc(list_, address, size, device_id(region)) == kSuccess;
  }
  XferDlist get() const { return list_; }

 private:
  const Api& api_;
  XferDlist list_ = nullptr;
};

Status NixlAgent::open() {
  int code = library_.create_agent(name_.c_str(), &agent_);
  if (code != kSuccess) {
    agent_ = nullptr;
    return {StatusCode::kCapability,
            with_code("NIXL refused to create an agent; its own log on stderr says more, and NIXL_LOG_LEVEL=DEBUG "
                      "most. Check the NIXL_* variables",
                      code)};
  }
  Params params = nullptr;
  code = api().create_params(&params);
  if (code == kSuccess) {
    code = api().create_backend(agent_, "UCX", params, &backend_);
    api().destroy_params(params);
  }
  if (code != kSuccess) {
    backend_ = nullptr;
    destroy();
    return {StatusCode::kCapability, with_code("NIXL's UCX backend cannot start with " + library_.path() +
                                                   "; check UCX_TLS and UCX_NET_DEVICES, and that the folder `plugins` "
                                                   "beside the library holds libplugin_UCX.so",
                                               code)};
  }
  if (api().create_opt_args(&with_backend_) != kSuccess ||
      api().opt_args_add_backend(with_backend_, backend_) != kSuccess ||
      api().create_notif_map(&notifications_) != kSuccess) {
    destroy();
    return {StatusCode::kInternal, "NIXL could not create its option objects"};
  }
  return Status::ok();
}

void NixlAgent::destroy() {
  if (notifications_ != nullptr) api().destroy_notif_map(notifications_);
  if (with_backend_ != nullptr) api().destroy_opt_args(with_backend_);
  if (backend_ != nullptr) api().destroy_backend(backend_);
  if (agent_ != nullptr) api().destroy_agent(agent_);
  notifications_ = nullptr;
  with_backend_ = nullptr;
  backend_ = nullptr;
  agent_ = nullptr;
}

Status NixlAgent::register_or_deregister(const Region& region, int (*Api::*operation)(Agent, RegDlist, OptArgs),
                                         const char* what) {
  RegDlist list = nullptr;
  int code = api().create_reg_dlist(memory_type(region.kind), &list);
  if (code == kSuccess) {
    code = api().reg_dlist_add_desc(list, region.base, region.size, device_id(region), nullptr, 0);
    if (code == kSuccess) code = (api().*operation)(agent_, list, with_backend_);
    api().destroy_reg_dlist(list);
  }
  if (code == kSuccess) return Status::ok();
  const bool is_device = region.kind == MemoryKind::kDevice;
  std::string text = "NIXL cannot " + std::string(what) + " " +
                     (is_device ? "device memory" : std::to_string(region.size) + " bytes of host memory") + ": ";
  if (!is_device) {
    text += "raise the locked-memory limit (ulimit -l) where a network card pins it";
  } else if (!library_.why_no_device_memory().empty()) {
    text += library_.why_no_device_memory();
  } else {
    text += "UCX needs its CUDA modules beside the library, libcudart, and UCX_TLS to allow cuda_copy and cuda_ipc";
  }
  // A machine on which UCX takes no device memory takes none later either.
  return {is_device ? StatusCode::kCapability : StatusCode::kResource, with_code(std::move(text), code)};
}

Status NixlAgent::register_region(const Region& region) {
  return register_or_deregister(region, &Api::register_mem, "register");
}

Status NixlAgent::deregister_region(const Region& region) {
  return register_or_deregister(region, &Api::deregister_mem, "deregister");
}

Status NixlAgent::local_metadata(std::vector<std::byte>* out) {
  void* data = nullptr;
  std::size_t size = 0;
  const int code = api().get_local_md(agent_, &data, &size);
  if (code != kSuccess || data == nullptr) {
    return {StatusCode::kInternal, with_code("NIXL gave no metadata of its agent", code)};
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  out->assign(bytes, bytes + size);
  library_.free_result(data);
  return Status::ok();
}

Status NixlAgent::load_remote(std::span<const std::byte> blob, std::string* name) {
  char* loaded = nullptr;
  const int code = api().load_remote_md(agent_, blob.data(), blob.size(), &loaded);
  if (code != kSuccess) return {StatusCode::kTransport, with_code("NIXL cannot load the peer's metadata", code)};
  *name = loaded == nullptr ? "" : loaded;
  library_.free_result(loaded);
  return Status::ok();
}

bool NixlAgent::is_reachable(const std::string& name) {
  // The error callback of an endpoint runs in UCX's progress, which may come after the operation that failed.
  progress();
  // NIXL up to 1.4 drops a remote by itself when it disconnects; from 1.5 on it keeps it, with an endpoint that refuses
  // all work.
  if (api().check_remote_md(agent_, name.c_str(), nullptr) != kSuccess) return false;
  static constexpr char kProbe[] = "probe";
  return api().gen_notif(agent_, name.c_str(), kProbe, sizeof(kProbe) - 1, with_backend_) == kSuccess;
}

void NixlAgent::invalidate_remote(const std::string& name) {
  // Fails when NIXL has already dropped the remote by itself after a disconnect: then there is nothing left to do.
  (void)api().invalidate_remote_md(agent_, name.c_str());
}

Status NixlAgent::create_write(const std::string& remote, std::span<const PlacedRun> runs, XferReq* request) {
  const Region& first_source = *runs.front().source;
  const Region& first_destination = *runs.front().destination;
  DescriptorList local(api(), first_source.kind);
  DescriptorList target(api(), first_destination.kind);
  for (const PlacedRun& placed : runs) {
    if (placed.source->kind != first_source.kind || placed.destination->kind != first_destination.kind) {
      return {StatusCode::kInvalidArgument, "one batch cannot mix host and device memory on one side"};
    }
    if (!local.add(placed.run.source, placed.run.bytes, *placed.source) ||
        !target.add(placed.run.destination, placed.run.bytes, *placed.destination)) {
      return {StatusCode::kInternal, "NIXL could not build a descriptor list"};
    }
  }
  const int code =
      api().create_xfer_req(agent_, kWrite, local.get(), target.get(), remote.c_str(), request, with_backend_);
  if (code == kSuccess) return Status::ok();
  *request = nullptr;
  return {StatusCode::kTransport, with_code("NIXL refused a write to " + remote, code)};
}

int NixlAgent::post(XferReq request) {
  // No options: with options but no notification in them NIXL would erase what the request was created with.
  return api().post_xfer_req(agent_, request, nullptr);
}

int NixlAgent::status(XferReq request) { return api().get_xfer_status(agent_, request); }

void NixlAgent::destroy_request(XferReq request) {
  // The wrapper can only be destroyed once NIXL has let go of the request; a refused release keeps both, on purpose.
  if (api().release_xfer_req(agent_, request) == kSuccess) api().destroy_xfer_req(request);
}

int NixlAgent::send_notification(const std::string& remote, std::span<const std::byte> bytes) {
  return api().gen_notif(agent_, remote.c_str(), bytes.data(), bytes.size(), with_backend_);
}

void NixlAgent::take_notifications(std::size_t sender_count, std::vector<Notification>* out) {
  for (std::size_t i = 0; i < sender_count; ++i) {
    const char* name = nullptr;
    std::size_t count = 0;
    if (api().notif_map_get_agent_at(notifications_, i, &name) != kSuccess || name == nullptr ||
        api().notif_map_get_notifs_size(notifications_, name, &count) != kSuccess) {
      continue;
    }
    for (std::size_t k = 0; k < count; ++k) {
      const void* data = nullptr;
      std::size_t size = 0;
      if (api().notif_map_get_notif(notifications_, name, k, &data, &size) != kSuccess) break;
      // What is larger or emptier than any message of ours is nobody's.
      if (data == nullptr || size == 0 || size > kMaxNotificationBytes || out->size() >= kMaxNotifications) continue;
      const auto* bytes = static_cast<const std::byte*>(data);
      out->push_back({name, {bytes, bytes + size}});
    }
  }
}

void NixlAgent::progress(std::vector<Notification>* received) {
  std::size_t count = 0;
  if (api().get_notifs(agent_, notifications_, nullptr) == kSuccess &&
      api().notif_map_size(notifications_, &count) == kSuccess && count == 0) {
    return;
  }
  if (received != nullptr) take_notifications(count, received);
  api().notif_map_clear(notifications_);
}

}  // namespace kvt::nixl
