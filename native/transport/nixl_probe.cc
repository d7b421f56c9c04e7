#include "transport/nixl_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "device/cuda_context.h"
#include "transport/nixl_memory.h"

namespace kvt::nixl {
namespace {

// The first write connects; of some more one is undisturbed.
constexpr int kFewest = 3;
constexpr int kMost = 8;
// A peer that answers no probe in this time is ready all the same; what it is sent is judged instead.
constexpr auto kLimit = std::chrono::milliseconds(100);

}  // namespace

Status ProbeMemory::allocate(MemoryKind kind, int device, Region* out) {
  Region region{.base = 0, .size = bytes_of(kind), .kind = kind, .device = kind == MemoryKind::kDevice ? device : -1};
  if (kind == MemoryKind::kHost) {
    if (Status status = map_resident(region.size, &region.base, &mapped_size_); !status.is_ok()) return status;
  } else {
    std::shared_ptr<const CudaContext> context;
    Status status = CudaContext::retain(device, &context);
    // Plain, so that UCX can share it.
    if (status.is_ok()) status = DevicePool::allocate(context, region.size, &pool_, PoolMaking::kPlain);
    if (!status.is_ok()) return status;
    region.base = pool_->base();
  }
  regions_[static_cast<std::size_t>(kind)] = region;
  *out = region;
  return Status::ok();
}

void ProbeMemory::free(MemoryKind kind) {
  std::optional<Region>& region = regions_[static_cast<std::size_t>(kind)];
  if (!region) return;
  if (kind == MemoryKind::kHost) {
    unmap(region->base, mapped_size_);
  } else {
    pool_.reset();
  }
  region.reset();
}

void ProbeMemory::abandon() {
  (void)pool_.release();
  regions_ = {};
}

std::vector<Region> ProbeMemory::all() const {
  std::vector<Region> out;
  for (const std::optional<Region>& region : regions_) {
    if (region) out.push_back(*region);
  }
  return out;
}

double ProbeMemory::copy_rate() const {
  const Region* const region = find(MemoryKind::kHost);
  if (region == nullptr) return 0;
  constexpr int kTimes = 4;
  const std::size_t half = region->size / 2;
  auto* const bytes = reinterpret_cast<std::byte*>(region->base);
  double best = 0;
  for (int i = 0; i < kTimes; ++i) {
    const TimePoint start = std::chrono::steady_clock::now();
    std::memcpy(bytes + half, bytes, half);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(half) / std::max(took.count(), 1e-3));
  }
  return best;
}

void PeerProbes::plan(PeerId peer, const ProbeMemory& from, const std::vector<Region>& to) {
  Peer planned{.left = {}, .ends_at = std::chrono::steady_clock::now() + kLimit};
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kDevice}) {
    const Region* const ours = from.find(kind);
    const auto theirs =
        std::find_if(to.begin(), to.end(), [kind](const Region& region) { return region.kind == kind; });
    if (ours == nullptr || theirs == to.end()) continue;
    planned.left.push_back({.kind = kind,
                            .run = {ours->base, theirs->base, std::min(ours->size, theirs->size)},
                            .batch = {},
                            .posted_at = {}});
  }
  if (!planned.left.empty()) peers_.emplace(peer, std::move(planned));
}

std::optional<BatchResult> PeerProbes::step(PeerId peer, Probe* probe) {
  BatchResult result;
  if (probe->batch) {
    result = transport_->poll(*probe->batch);
  } else {
    probe->batch = ++last_;
    probe->posted_at = std::chrono::steady_clock::now();
    result = transport_->post(*probe->batch, peer, {&probe->run, 1});
  }
  if (result.state == BatchState::kInFlight) return std::nullopt;
  probe->batch.reset();
  if (result.state == BatchState::kFailed) return result;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - probe->posted_at;
  probe->best = std::max(probe->best, static_cast<double>(probe->run.bytes) / std::max(took.count(), 1e-3));
  ++probe->count;
  return result;
}

bool PeerProbes::run(PeerId peer, SpeedWatch* speed) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return true;
  while (!entry->second.left.empty()) {
    Probe& probe = entry->second.left.front();
    const bool is_fast = probe.count >= kFewest && probe.best >= speed->slow_below(probe.kind);
    const bool is_late = std::chrono::steady_clock::now() >= entry->second.ends_at;
    if (is_fast || is_late || probe.count == kMost) {
      if (probe.count > 0) speed->probed(peer, probe.kind, probe.best, probe.run.bytes);
      if (is_late) break;
      entry->second.left.pop_front();
      continue;
    }
    const std::optional<BatchResult> result = step(peer, &probe);
    if (!result) return false;
    if (result->state == BatchState::kDone) continue;
    // The peer may be gone with it, which its own state says.
    speed->tell("a probe write failed: " + result->error.message());
    break;
  }
  drop(peer);
  return true;
}

void PeerProbes::drop(PeerId peer) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  for (const Probe& probe : entry->second.left) {
    if (probe.batch) dropped_.push_back(*probe.batch);
  }
  peers_.erase(entry);
}

void PeerProbes::poll_dropped() {
  std::erase_if(dropped_, [this](BatchId batch) { return transport_->poll(batch).state != BatchState::kInFlight; });
}

bool PeerProbes::is_idle() const {
  const auto is_busy = [](const Probe& probe) { return probe.batch.has_value(); };
  return dropped_.empty() && std::none_of(peers_.begin(), peers_.end(), [&is_busy](const auto& entry) {
           return std::any_of(entry.second.left.begin(), entry.second.left.end(), is_busy);
         });
}

}  // namespace kvt::nixl
