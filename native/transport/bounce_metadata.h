#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "transport/transport.h"

namespace kvt {

enum class BounceLinkKind : std::uint8_t { kSocket = 1, kMessages = 2 };

// What an agent with a bounce arena puts before its transport's own metadata. Little endian:
//
//    0  8  "KVTBNCE\n"
//    8  2  version of the bounce protocol
//   10  1  link kind
//   11  1  memory kind of the arena
//   12  4  link address length n, 0 .. 256
//   16  8  arena base
//   24  8  arena bytes
//   32  8  largest chunk
//   40  8  FNV-1a 64 of the bytes before and of the link address
//   48  n  link address
//          the metadata of the transport below
//
// src/agent/bounce.ts reads the head too, to say which path a peer takes.
struct BounceMetadata {
  std::uint16_t version = 0;
  BounceLinkKind link = BounceLinkKind::kSocket;
  MemoryKind kind = MemoryKind::kHost;
  std::uint64_t arena_base = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t max_chunk = 0;
  std::vector<std::byte> link_address;
};

std::vector<std::byte> wrap_bounce_metadata(const BounceMetadata& bounce, std::span<const std::byte> base);

// `base` is what of `metadata` is the transport's own, whether or not a head of ours is before it. `head` (may be null)
// is set to it, or to nothing when there is none. kTransport when a head is cut or damaged; a version that we do not
// speak is the caller's to see.
Status unwrap_bounce_metadata(std::span<const std::byte> metadata, std::span<const std::byte>* base,
                              std::optional<BounceMetadata>* head);

}  // namespace kvt
