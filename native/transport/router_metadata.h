#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "transport/note_lane.h"
#include "transport/process_watch.h"

namespace kvt {

// What an agent tells its peers: its base transport's metadata, then what the other paths need, then this footer of 80
// bytes. Little endian.
//
//    0   n  metadata of the base transport
//    n   p  metadata of the p2p transport; p = 0: the agent has no device memory that others can map
//  n+p   r  head of the bounce path (bounce_metadata.h); r = 0: the agent has no bounce arena
//  from the end of that:
//    0   4  n
//    4   4  p
//    8   4  r
//   12   4  version (1)
//   16  16  boot id of the agent's machine
//   32   8  inode of its process namespace
//   40   8  start time of its process
//   48   4  process id
//   52  12  id of the agent's note lane (note_lane.h); zero: it has none
//   64   8  FNV-1a 64 of everything before, without this field and the last
//   72   8  "KVTROUTE"
//
// The checksum finds damage, not forgery: who may send metadata is the control plane's business.
struct RouterMetadata {
  std::vector<std::byte> base;
  std::vector<std::byte> p2p;
  std::vector<std::byte> more;
  ProcessIdentity process;
  NoteLaneId note_lane{};
};

std::vector<std::byte> encode_router_metadata(const RouterMetadata& metadata);

// Trusts nothing: kTransport for a wrong length, version or checksum.
Status decode_router_metadata(std::span<const std::byte> bytes, RouterMetadata* out);

}  // namespace kvt
