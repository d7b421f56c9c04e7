#include "transport/p2p_peer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvt {
namespace {

std::size_t count_descriptors(const P2pMetadata& metadata) {
  return static_cast<std::size_t>(std::count_if(metadata.regions.begin(), metadata.regions.end(), [](const auto& r) {
    return r.handle.sharing == PoolSharing::kDescriptor;
  }));
}

std::size_t pool_bytes(const SlotPool& pool) {
  return pool.slot_stride * static_cast<std::size_t>(pool.slot_count - 1) + pool.slot_bytes;
}

// Enough for the tables of several models.
constexpr std::size_t kMaxTables = 256;

// By what is known of them.
GpuLink slower(GpuLink one, GpuLink other) {
  for (const GpuLink link : {GpuLink::kPcie, GpuLink::kNvlink, GpuLink::kSameGpu}) {
    if (one == link || other == link) return link;
  }
  return GpuLink::kUnknown;
}

}  // namespace

P2pPeer::P2pPeer(const P2pMetadata& metadata, int epoll, std::uint64_t event, TimePoint deadline)
    : client_("p2p peer", metadata.socket_name, metadata.token, count_descriptors(metadata), epoll, event, deadline),
      published_(metadata.regions) {
  for (const P2pRegion& region : published_) (void)regions_.add({region.base, region.handle.size});
}

void P2pPeer::advance(const std::shared_ptr<const CudaContext>& context, TimePoint now) {
  const bool was_ready = client_.state() == PeerState::kReady;
  client_.advance(now);
  if (was_ready || client_.state() != PeerState::kReady) return;
  std::vector<UniqueFd> descriptors = client_.take_descriptors();
  std::size_t next = 0;
  for (const P2pRegion& region : published_) {
    UniqueFd descriptor;
    if (region.handle.sharing == PoolSharing::kDescriptor) descriptor = std::move(descriptors[next++]);
    std::unique_ptr<PeerMapping> mapping;
    // An IPC handle cannot be opened where it was made; two agents of one process reach each other without.
    const bool is_own = client_.pid() == ::getpid() && region.handle.sharing != PoolSharing::kDescriptor;
    const Status status = is_own ? PeerMapping::open_own(context, region.base, region.handle, &mapping)
                                 : PeerMapping::open(context, region.handle, std::move(descriptor), &mapping);
    if (!status.is_ok()) {
      client_.fail(status.code(), "its pool cannot be mapped: " + status.message());
      return;
    }
    mappings_.push_back(std::move(mapping));
    link_ = slower(link_, link_to(*context, region.handle.device));
  }
}

std::uintptr_t P2pPeer::translate(std::uintptr_t address, std::size_t size) const {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    const P2pRegion& region = published_[i];
    if (address < region.base) continue;
    const std::size_t offset = address - region.base;
    if (offset <= region.handle.size && size <= region.handle.size - offset) return mappings_[i]->base() + offset;
  }
  return 0;
}

void P2pPeer::drop_unused(DeviceBufferPool* buffers) {
  for (auto entry = tables_.begin(); entry != tables_.end();) {
    // A slice in flight holds its tables, so nothing queued reads this one.
    if (entry->second.original.use_count() > 1) {
      ++entry;
      continue;
    }
    buffers->give_back(std::move(entry->second.buffer));
    entry = tables_.erase(entry);
  }
}

void P2pPeer::give_back_tables(DeviceBufferPool* buffers) {
  for (auto& [key, table] : tables_) buffers->give_back(std::move(table.buffer));
  tables_.clear();
}

Status P2pPeer::find_table(const std::shared_ptr<const FragmentTable>& table, const RegionSet& own,
                           const CudaStream& idle, DeviceBufferPool* buffers, const Table** out) {
  if (const auto known = tables_.find(table.get()); known != tables_.end()) {
    *out = &known->second;
    return Status::ok();
  }
  if (tables_.size() >= kMaxTables) drop_unused(buffers);
  std::vector<Fragment> fragments = table->fragments();
  for (Fragment& fragment : fragments) {
    const std::uintptr_t mapped = translate(fragment.destination.base, pool_bytes(fragment.destination));
    if (mapped == 0 || !own.contains(fragment.source.base, pool_bytes(fragment.source))) {
      return Status(StatusCode::kInvalidArgument, "a pool leaves the memory that its side registered");
    }
    fragment.destination.base = mapped;
  }
  Table made;
  made.original = table;
  Status status = FragmentTable::create(fragments, &made.translated);
  if (!status.is_ok()) return status;
  status = make_copy_table(made.translated, &made.copy);
  if (!status.is_ok()) return status;
  const std::size_t bytes = made.copy.fragments.size() * sizeof(DeviceFragment);
  status = buffers->take(bytes, &made.buffer);
  if (!status.is_ok()) return status;
  std::memcpy(made.buffer.host().data(), made.copy.fragments.data(), bytes);
  status = made.buffer.upload(bytes, idle);
  if (!status.is_ok()) {
    buffers->give_back(std::move(made.buffer));
    return status;
  }
  // Every other stream may read it from here on, and a table's first use is rare: these microseconds are waited for.
  status = idle.synchronize();
  if (!status.is_ok()) {
    unsettled_.push_back(std::move(made.buffer));
    return status;
  }
  *out = &tables_.emplace(table.get(), std::move(made)).first->second;
  return Status::ok();
}

}  // namespace kvt
