#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/bounce_frame.h"
#include "core/fragment_table.h"
#include "core/plan_cursor.h"
#include "core/run.h"

namespace kvt {

// Slots of one side that a table is applied to, in canonical order.
struct PackedGroup {
  std::shared_ptr<const FragmentTable> table;
  std::vector<std::int32_t> slots;
};

enum class PackedSide : std::uint8_t { kSource, kDestination };

// Everything a table says of canonical order: sizes and counts, no address. Two sides whose tables differ in it would
// put bytes into the wrong places, so it travels with each WANT.
std::uint64_t shape_of(const FragmentTable& table);

std::uint64_t packed_bytes(std::span<const PackedGroup> groups);

// Role: expands canonical bytes [begin, end) of packed groups into pieces of pages, so that a chunk may be cut
// anywhere. Ordering: as PlanCursor: group, fragment, slot, piece. Pieces that touch come out as one.
class PackedCursor {
 public:
  // `groups` must outlive the cursor.
  PackedCursor(std::span<const PackedGroup> groups, PackedSide side, std::uint64_t begin, std::uint64_t end);

  struct Piece {
    std::uintptr_t page = 0;   // on the side that was asked for
    std::uint64_t offset = 0;  // from `begin`
    std::size_t bytes = 0;
  };
  // Appends at most `max_pieces` pieces of together at most `max_bytes` bytes; returns their bytes, 0 at the end.
  std::size_t take(std::size_t max_pieces, std::size_t max_bytes, std::vector<Piece>* out);
  bool is_done() const { return at_ == end_; }

 private:
  bool produce(Piece* piece);
  void seek(std::uint64_t begin);

  std::span<const PackedGroup> groups_;
  PackedSide side_;
  std::uint64_t begin_;
  std::uint64_t at_;  // of what take() gives next
  std::uint64_t end_;
  std::uint64_t next_at_;  // of what produce() gives next
  std::size_t group_ = 0;
  std::size_t fragment_ = 0;
  std::size_t slot_ = 0;
  std::size_t piece_ = 0;
  std::size_t skip_ = 0;  // bytes of the first piece that lie before `begin`
  Piece current_;         // not handed out; bytes == 0: none
};

// One group of slots that a writer may have scattered into, by the reader's own table.
struct InboundGroup {
  std::uint32_t key = 0;
  std::shared_ptr<const FragmentTable> table;
  std::vector<std::int32_t> slots;
};

// The part of a slice that one WANT names.
struct BounceRequestPlan {
  std::vector<PackedGroup> sources;
  std::vector<WantGroup> groups;
  std::vector<std::int32_t> destination_slots;
  std::uint64_t total_bytes = 0;
};

// Cuts a slice into requests within the limits of WANT. Order of groups and slots stays; groups without bytes vanish.
std::vector<BounceRequestPlan> split_slice(std::span<const PlanGroup> groups);

// What a chunk must be worth: below `smallest` its messages and launches cost more than its bytes; a request is cut
// into about `per_request`, since fewer overlap too little.
struct ChunkSizing {
  std::uint64_t smallest = std::uint64_t{1} << 20;
  std::uint64_t per_request = 4;
};
// A chunk on a GPU costs the two threads some 45 us (launches, post, frames; two H200), in which a link of 400 GB/s
// moves 18 MiB; the first one's gather and the last one's scatter overlap with nothing.
inline constexpr ChunkSizing kDeviceChunks{std::uint64_t{8} << 20, 10};

// Chunks of one request: large enough to be worth a message, small enough that gather, write and scatter overlap.
std::uint32_t choose_chunk_bytes(std::uint64_t total_bytes, std::uint64_t max_chunk, const ChunkSizing& sizing = {});

// Whether a path that names each run makes at least so many descriptors of a slice. Costs no more than counting to
// that.
bool has_descriptors(std::span<const PlanGroup> groups, std::uint64_t count);

// By what it is decided which slices are bounced that can be. Of memory of a GPU by cost, of host memory, whose paths
// were not measured, by thresholds.
enum class BounceRule : std::uint8_t {
  kCost,
  kThresholds,  // the operator's, for either memory
  kAlways,
};

// Which slices are bounced that can be.
struct BounceThresholds {
  // At least so many descriptors ...
  std::uint64_t min_descriptor_count = 1024;
  // ... of at most this many bytes on average.
  std::uint64_t max_average_descriptor_bytes = std::uint64_t{16} << 10;
  BounceRule rule = BounceRule::kCost;
};
// By the thresholds, unless all are.
bool is_worth_bouncing(std::span<const PlanGroup> groups, const BounceThresholds& thresholds);

}  // namespace kvt
