#include "transport/nixl_loop.h"

#include <chrono>
#include <utility>

#include "transport/nixl_envelope.h"
#include "transport/router_metadata.h"

namespace kvt {
namespace {

using Clock = std::chrono::steady_clock;

// A write of some gigabytes takes tens of milliseconds.
constexpr auto kLimit = std::chrono::seconds(10);

// UCX asks for the thread's context; without a GPU there is none to set.
class MaybeCurrent {
 public:
  explicit MaybeCurrent(const std::shared_ptr<const CudaContext>& context) {
    if (context != nullptr) current_.emplace(*context);
  }
  Status status() const { return current_ ? current_->status() : Status::ok(); }

 private:
  std::optional<CurrentContext> current_;
};

}  // namespace

Status NixlLoop::open(const NixlOptions& options, const Region& source, std::span<const std::byte> peer,
                      std::shared_ptr<const CudaContext> context) {
  if (agent_) return Status(StatusCode::kState, "the loop was opened before");
  context_ = std::move(context);
  const MaybeCurrent current(context_);
  if (Status status = current.status(); !status.is_ok()) return status;
  NixlProbe probe;
  const nixl::Library* const library = nixl::load(options, &probe);
  if (library == nullptr) return Status(StatusCode::kCapability, probe.reason);
  agent_.emplace(*library, options.agent_name);
  Status status = agent_->open();
  if (status.is_ok()) status = agent_->register_region(source);
  if (!status.is_ok()) return status;
  source_ = source;
  is_registered_ = true;
  return load_peer(peer);
}

Status NixlLoop::load_peer(std::span<const std::byte> peer) {
  RouterMetadata routed;
  Status status = decode_router_metadata(peer, &routed);
  if (!status.is_ok()) return status;
  nixl::Envelope envelope;
  status = nixl::decode_envelope(routed.base, &envelope);
  if (status.is_ok()) status = agent_->load_remote(envelope.blob, &remote_name_);
  if (status.is_ok()) remote_ = std::move(envelope.regions);
  return status;
}

Status NixlLoop::time(std::span<const Run> runs, std::int64_t* nanoseconds) {
  if (!is_registered_ || is_stuck_ || remote_name_.empty()) return Status(StatusCode::kState, "the loop is not open");
  const MaybeCurrent current(context_);
  if (Status status = current.status(); !status.is_ok()) return status;
  std::vector<nixl::NixlAgent::PlacedRun> placed;
  for (const Run& run : runs) {
    const Region* const to = remote_.find(run.destination, run.bytes);
    const bool is_inside = run.bytes > 0 && run.source >= source_.base && run.bytes <= source_.size &&
                           run.source - source_.base <= source_.size - run.bytes;
    if (to == nullptr || !is_inside) {
      return Status(StatusCode::kInvalidArgument, "a run leaves the memory that its side registered");
    }
    placed.push_back({.run = run, .source = &source_, .destination = to});
  }
  if (placed.empty()) return Status(StatusCode::kInvalidArgument, "a loop needs runs");
  const auto begin = Clock::now();
  nixl::XferReq request = nullptr;
  Status status = agent_->create_write(remote_name_, placed, &request);
  if (!status.is_ok()) return status;
  int code = agent_->post(request);
  while (code == nixl::kInProgress && Clock::now() - begin < kLimit) code = agent_->status(request);
  *nanoseconds = std::chrono::nanoseconds(Clock::now() - begin).count();
  if (code == nixl::kInProgress) {
    // It may still land: the agent is left alone for ever, memory included.
    is_stuck_ = true;
    return Status(StatusCode::kTransport, "a NIXL write did not end");
  }
  agent_->destroy_request(request);
  if (code == nixl::kSuccess) return Status::ok();
  return Status(StatusCode::kTransport, "a NIXL write failed with status " + std::to_string(code));
}

bool NixlLoop::close() {
  if (is_stuck_) return false;
  if (!agent_ || !agent_->is_open()) return true;
  const MaybeCurrent current(context_);
  if (!remote_name_.empty()) agent_->invalidate_remote(remote_name_);
  if (is_registered_) (void)agent_->deregister_region(source_);
  agent_->destroy();
  is_registered_ = false;
  remote_name_.clear();
  return true;
}

}  // namespace kvt
