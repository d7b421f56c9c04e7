#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace kvt {

// What the two sides of a bounced slice say to each other. A slice is cut into requests small enough for one WANT; a
// request's bytes, in canonical order, are cut into chunks.
//
//   writer                                        reader
//   WANT   these slots, so many bytes      ->
//                                          <-     GRANT  chunk i may lie in the arena at ...
//   (gathers, writes)  DATA  chunk i lies there ->
//                                          <-     ACK    chunk i is in its pages
//                                          <-     NACK   nothing of this request is scattered from now on
//   CANCEL no write is started any more    ->
//
// Little endian. Header: magic u32, version u8, type u8, zero u16, request u64, ticket u64. Frames may be lost, doubled
// and overtake each other; none is larger than kMaxFrameBytes.
inline constexpr std::size_t kMaxBounceFrameBytes = 4096;
inline constexpr std::uint16_t kBounceVersion = 2;
inline constexpr std::size_t kMaxWantGroups = 8;
inline constexpr std::size_t kMaxWantSlots = 896;
inline constexpr std::size_t kMaxGrantsPerFrame = 64;
inline constexpr std::size_t kMaxUnproven = 256;
inline constexpr std::uint32_t kMaxWantChunks = 65536;

enum class BounceFrameType : std::uint8_t { kWant = 1, kGrant = 2, kData = 3, kAck = 4, kNack = 5, kCancel = 6 };

// Why a reader refused or gave up a request.
enum class BounceRefusal : std::uint32_t {
  kEnded = 1,      // the receive was cancelled, failed or is over
  kUnknownTicket,  // nothing is expected under it
  kMismatch,       // other groups, fragments or sizes than the reader's own
  kForeignSlot,    // a slot that is not the ticket's
  kTooMany,        // more requests than the reader keeps
  kScatterFailed,  // the reader's device refused
  kTimedOut,       // no progress for twice the request timeout
  kCancelled,      // the writer's own CANCEL, answered
  kArenaLost,      // what is left of the reader's arena is too small: writers that are gone may still write the rest
};
const char* to_text(BounceRefusal refusal);

// WANT: total u64, chunk bytes u32, group count u32; per group: key u32, slot count u32, shape u64; then all slots,
// i32.
struct WantGroup {
  std::uint32_t key = 0;
  std::uint32_t slot_count = 0;
  std::uint64_t shape = 0;
};
// GRANT: count u32, zero u32; per chunk: grant u64, offset u64, chunk u32, bytes u32.
struct GrantedChunk {
  std::uint64_t grant = 0;
  std::uint64_t offset = 0;
  std::uint32_t chunk = 0;
  std::uint32_t bytes = 0;
};

struct BounceFrame {
  BounceFrameType type = BounceFrameType::kWant;
  std::uint64_t request = 0;
  std::uint64_t ticket = 0;
  // WANT
  std::uint64_t total_bytes = 0;
  std::uint32_t chunk_bytes = 0;
  std::vector<WantGroup> groups;
  std::vector<std::int32_t> slots;
  // GRANT
  std::vector<GrantedChunk> grants;
  // DATA and ACK: grant u64, chunk u32, zero u32.
  std::uint64_t grant = 0;
  std::uint32_t chunk = 0;
  // NACK: refusal u32, zero u32.
  BounceRefusal refusal = BounceRefusal::kEnded;
  // CANCEL: count u32, zero u32; grants, u64 each, that a write may still land in.
  std::vector<std::uint64_t> unproven;
};

// The caller keeps to the limits above.
std::vector<std::byte> encode_bounce_frame(const BounceFrame& frame);

// kTransport with the rule that is broken. `out` is written only on success. Reads nothing outside `bytes`.
Status decode_bounce_frame(std::span<const std::byte> bytes, BounceFrame* out);

}  // namespace kvt
