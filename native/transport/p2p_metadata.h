#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "device/pool_handle.h"
#include "transport/host_metadata.h"

namespace kvt {

// What a peer on the same machine needs to map the pools of a p2p agent. Little endian:
//
//    0  8  "KVTP2P\n\0"
//    8  2  version (1)
//   10  2  length n of the socket name, 1 .. 64
//   12  4  number r of regions, 0 .. 1024
//   16 16  boot id: which machine, which boot
//   32 16  token: who presents it was given this metadata
//   48  n  abstract Unix socket name without its leading NUL
//     120r each region: base 8 | size 8 | offset 8 | allocation size 8 | sharing 1 | 7 zero | device uuid 16 | IPC
//     handle 64
//
// Descriptors of the regions that are shared by one come over the socket, in the order of the regions.
struct P2pRegion {
  std::uintptr_t base = 0;  // in the peer's own address space
  PoolHandle handle;        // its descriptor is not part of the metadata
};

struct P2pMetadata {
  std::array<std::byte, 16> boot_id{};
  HostToken token{};
  std::string socket_name;
  std::vector<P2pRegion> regions;
};

inline constexpr std::size_t kMaxP2pRegions = 1024;

std::vector<std::byte> encode_p2p_metadata(const P2pMetadata& metadata);

// Trusts nothing: kTransport for a wrong length, version, count or sharing, for regions that overlap or wrap, and for
// pools that leave their allocation.
Status decode_p2p_metadata(std::span<const std::byte> bytes, P2pMetadata* out);

}  // namespace kvt
