#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>

#include "core/buddy_allocator.h"
#include "core/flow_scheduler.h"

namespace kvt {

using BounceTime = std::chrono::steady_clock::time_point;

struct CreditLimits {
  std::uint64_t arena_bytes = 0;
  std::uint64_t min_block = std::uint64_t{64} << 10;
  std::uint64_t max_chunk = std::uint64_t{32} << 20;
  // Regions one flow may hold at a time.
  std::size_t max_held_per_flow = 8;
  // How long everyone else waits for room for one flow's chunk before the others go on.
  std::chrono::milliseconds drain_limit{1000};
};

// Role: decides which inbound chunk gets a region of the arena next, and lends staging for outbound ones.
// Why no two agents can wait for each other for ever: what one side granted is given back only when the other could
//   stage and write. So the arena is a row of units, each as large as the largest chunk,
//
//     | grants only ...          | grants, staging ahead of its grant, staging | staging under a grant only |
//       0                          units / 2 from the end                        last unit
//
//   and both kinds always have a unit that only their own progress frees. Staging never takes more than half.
// Ordering: flows take turns chunk by chunk; the chunks of a flow are granted in order. A flow whose chunk did not fit
//   while max(8, 2 x flows) other chunks were granted gets the arena to itself until it fits or `drain_limit` passed.
// Threading: one thread; time is a parameter.
class CreditScheduler {
 public:
  CreditScheduler() = default;
  // kInvalidArgument names the limit: the arena must hold two blocks of the largest chunk.
  static Status create(const CreditLimits& limits, CreditScheduler* out);

  // `count` chunks of `chunk_bytes`, the last of `last_bytes`, all between 1 and max_chunk.
  void push(FlowId flow, ItemId item, std::uint32_t count, std::uint64_t chunk_bytes, std::uint64_t last_bytes);
  // Its chunks that were not granted are not wanted any more. Unknown items are ignored.
  void remove(FlowId flow, ItemId item);

  struct Credit {
    FlowId flow = 0;
    ItemId item = 0;
    std::uint32_t chunk = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  // The next chunk that may be written, or nothing until a region is given back, a chunk is pushed or, when drain_until
  // says so, time passed.
  std::optional<Credit> next(BounceTime now);
  std::optional<BounceTime> drain_until() const;
  // Whether a chunk of so many bytes could be granted now, if it were its turn.
  bool has_room(std::uint64_t bytes);
  // Chunks that were pushed and not granted.
  std::uint64_t waiting() const { return waiting_; }

  // The region is free. Errors as of BuddyAllocator::release; nothing changes then.
  Status release(FlowId flow, std::uint64_t offset);
  // The region stays taken but does not count for its flow any more; release_set_aside frees it.
  void set_aside(FlowId flow);
  Status release_set_aside(std::uint64_t offset) { return arena_.release(offset); }

  enum class StagingKind : std::uint8_t { kAhead, kGranted };
  std::optional<std::uint64_t> stage(std::uint64_t bytes, StagingKind kind);
  Status release_staging(std::uint64_t offset) { return arena_.release(offset); }

  const BuddyAllocator& arena() const { return arena_; }
  std::uint64_t max_chunk() const { return limits_.max_chunk; }

 private:
  struct Item {
    ItemId id = 0;
    std::uint32_t next = 0;
    std::uint32_t count = 0;
    std::uint64_t chunk_bytes = 0;
    std::uint64_t last_bytes = 0;
  };
  struct Flow {
    std::deque<Item> items;
    std::size_t held = 0;
    // Grants so far when its head first did not fit.
    std::optional<std::uint64_t> missed_at;
    std::list<FlowId>::iterator place;  // valid while items is not empty
  };

  std::optional<Credit> grant_head(FlowId id, Flow* flow);
  void leave_ring(FlowId id, Flow* flow);

  CreditLimits limits_;
  BuddyAllocator arena_;
  BuddyAllocator::Window grants_;
  BuddyAllocator::Window staging_;
  BuddyAllocator::Window staging_ahead_;
  std::unordered_map<FlowId, Flow> flows_;
  std::list<FlowId> ring_;  // flows with items
  std::uint64_t granted_ = 0;
  std::uint64_t waiting_ = 0;
  struct Drain {
    FlowId flow = 0;
    BounceTime until;
  };
  std::optional<Drain> drain_;
};

}  // namespace kvt
