#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "transport/region_table.h"

namespace kvt::nixl {

// What one agent tells its peers: who it is, what it owns, and NIXL's own metadata. NIXL's blob is not hardened against
// bad input and its answers name no addresses, hence a frame of ours around it.
//
//   offset  bytes
//   0       4      magic "KVTN"
//   4       2      version, 2
//   6       2      name length n, 1..255
//   8       4      region count r, 0..4096
//   12      4      blob length b, 1..16 Mi
//   16      n      agent name, no control characters
//   16+n    24*r   regions: base u64, size u64, kind u32, device i32; kind + 256: memory for probes, which holds
//   nothing
//   ...     b      NIXL's blob
//   ...     8      FNV-1a 64 of everything before
//
// Little endian. The checksum finds damage, not forgery: who may send metadata is the control plane's business.
struct Envelope {
  std::string name;
  RegionTable regions;
  // Those of the regions that anybody may write into to see how fast that is; at most one of each kind counts.
  std::vector<Region> probes = {};
  std::vector<std::byte> blob;
};

// The agent name inside NIXL's blob, or nothing when its format is another than that of NIXL 1.0 to 1.5. A blob that
// names somebody else is refused before NIXL sees it: loading it could wipe what NIXL knows of that other peer.
std::optional<std::string_view> name_in_blob(std::span<const std::byte> blob);

// Fails when a field is out of the ranges above.
Status encode_envelope(const Envelope& envelope, std::vector<std::byte>* out);

// `out` is written only on success. Never reads outside `bytes`.
Status decode_envelope(std::span<const std::byte> bytes, Envelope* out);

}  // namespace kvt::nixl
