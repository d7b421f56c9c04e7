#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/fragment_table.h"
#include "core/region_set.h"
#include "device/copy_plan.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"
#include "device/device_buffer_pool.h"
#include "device/peer_mapping.h"
#include "transport/handover_client.h"
#include "transport/p2p_metadata.h"
#include "transport/transport.h"

namespace kvt {

// Role: one peer's pools, mapped here, the fragment tables translated for them, and the connection that tells when the
//   peer is gone.
// Threading: the progress thread.
// Ownership: owns connection, mappings and tables. A mapping keeps the peer's memory alive, so work that is queued when
//   the peer dies writes where nobody looks any more, and harms nobody.
class P2pPeer {
 public:
  P2pPeer(const P2pMetadata& metadata, int epoll, std::uint64_t event, TimePoint deadline);

  // Drives the hand-over; maps the pools when it has ended. Mapping blocks for some milliseconds, once a peer.
  void advance(const std::shared_ptr<const CudaContext>& context, TimePoint now);
  PeerState state() const { return client_.state(); }
  const Status& error() const { return client_.error(); }
  std::optional<TimePoint> next_wakeup(TimePoint now) const { return client_.next_wakeup(now); }
  bool check_alive() { return client_.check_alive(); }

  // Of a ready peer: the slowest link to any of its pools.
  GpuLink link() const { return link_; }

  // By the peer's own addresses.
  const RegionSet& regions() const { return regions_; }
  // Where the peer's bytes [address, address + size) are mapped here; 0 when the peer did not publish them.
  std::uintptr_t translate(std::uintptr_t address, std::size_t size) const;

  struct Table {
    std::shared_ptr<const FragmentTable> original;  // keeps its address from being given to another table
    FragmentTable translated;
    CopyTable copy;
    DeviceBuffer buffer;
  };
  // The table as the kernels read it; made and uploaded at its first use, over `idle`, a stream that never waits for
  // anything. `own` are this agent's regions. Tables that nobody else holds any more make room for new ones.
  Status find_table(const std::shared_ptr<const FragmentTable>& table, const RegionSet& own, const CudaStream& idle,
                    DeviceBufferPool* buffers, const Table** out);

  // Something queued may use mappings and tables for ever: of the peer those stay, and nothing else.
  void give_up() { client_.close(); }
  // Before the peer is destroyed, when nothing queued uses its tables.
  void give_back_tables(DeviceBufferPool* buffers);

 private:
  void drop_unused(DeviceBufferPool* buffers);

  HandoverClient client_;
  std::vector<P2pRegion> published_;  // in the order of regions_
  RegionSet regions_;
  GpuLink link_ = GpuLink::kUnknown;
  std::vector<std::unique_ptr<PeerMapping>> mappings_;
  std::unordered_map<const FragmentTable*, Table> tables_;
  std::vector<DeviceBuffer> unsettled_;  // tables whose upload may not have ended
};

}  // namespace kvt
