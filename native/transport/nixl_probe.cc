#include "transport/nixl_probe.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "device/cuda_context.h"
#include "transport/nixl_memory.h"

namespace kvt::nixl {

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

void Probe::note(TimePoint now, double fast_enough) {
  const std::chrono::duration<double, std::micro> took = now - posted_at;
  best = std::max(best, static_cast<double>(bytes()) / std::max(took.count(), 1e-3));
  ++count;
  batch.reset();
  is_over = count >= kMost || (count >= kFewest && best >= fast_enough);
}

}  // namespace kvt::nixl
