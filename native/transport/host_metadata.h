#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/region_set.h"
#include "core/status.h"

namespace kvt {

using HostToken = std::array<std::byte, 16>;

// What a peer needs to fetch the shared memory of a host agent. Little endian:
//
//    0  8  "KVTHOST\n"
//    8  2  version (1)
//   10  2  length n of the socket name, 1 .. 64
//   12  4  number r of regions, 0 .. 1024
//   16 16  boot id: which machine, which boot
//   32 16  token: who presents it was given this metadata
//   48  n  abstract Unix socket name without its leading NUL
//      16r base, size of each region, 8 bytes each
struct HostMetadata {
  std::array<std::byte, 16> boot_id{};
  HostToken token{};
  std::string socket_name;
  std::vector<MemoryRange> regions;
};

inline constexpr std::size_t kMaxHostRegions = 1024;

std::vector<std::byte> encode_host_metadata(const HostMetadata& metadata);

// Trusts nothing: kTransport for a wrong length, version or count and for regions that overlap or wrap.
Status decode_host_metadata(std::span<const std::byte> bytes, HostMetadata* out);

// Identifies the running kernel, so that metadata from another machine is refused with a clear text.
Status read_boot_id(std::array<std::byte, 16>* out);

}  // namespace kvt
