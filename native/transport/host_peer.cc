#include "transport/host_peer.h"

#include <utility>

namespace kvt {

HostPeer::HostPeer(HostMetadata metadata, int epoll, std::uint64_t event, TimePoint deadline)
    : client_("host peer", metadata.socket_name, metadata.token, metadata.regions.size(), epoll, event, deadline) {
  for (const MemoryRange& range : metadata.regions) (void)regions_.add(range);
}

void HostPeer::advance(TimePoint now) {
  const bool was_ready = client_.state() == PeerState::kReady;
  client_.advance(now);
  if (was_ready || client_.state() != PeerState::kReady) return;
  std::vector<UniqueFd> descriptors = client_.take_descriptors();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    SharedMapping mapping;
    const Status status = SharedMapping::adopt(std::move(descriptors[i]), regions_.ranges()[i].size, &mapping);
    if (!status.is_ok()) {
      client_.fail(status.code(), status.message());
      return;
    }
    mappings_.push_back(std::move(mapping));
  }
}

std::uintptr_t HostPeer::translate(std::uintptr_t address, std::size_t size) const {
  const std::vector<MemoryRange>& ranges = regions_.ranges();
  // Runs of one slice nearly always fall into one region.
  if (last_region_ < ranges.size()) {
    const MemoryRange& range = ranges[last_region_];
    const std::size_t offset = address - range.base;
    if (address >= range.base && offset <= range.size && size <= range.size - offset) {
      return mappings_[last_region_].base() + offset;
    }
  }
  const std::size_t index = regions_.find(address, size);
  if (index == RegionSet::kNone) return 0;
  last_region_ = index;
  return mappings_[index].base() + (address - ranges[index].base);
}

}  // namespace kvt
