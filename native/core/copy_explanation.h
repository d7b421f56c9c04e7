#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/path_cost.h"
#include "core/plan_cursor.h"

namespace kvt {

// By what the bytes of a slice are moved on its path. Mirrored by src/agent/native-agent.ts.
enum class CopyMeans : std::uint8_t {
  kThread,       // the agents' progress threads
  kDescriptors,  // NIXL, one descriptor per contiguous run
  kEngines,      // a GPU's copy engines
  kBulk,         // the kernel of that name
  kRegisters,    // the kernels of that name
};

// What decides it beside the slice.
struct CopySituation {
  // kHost: host memory, by whatever moves it.
  DataPath path = DataPath::kHost;
  // Whether NIXL moves what goes by kHost.
  bool is_nixl = false;
  // Of kBounce: the arena is memory of a GPU.
  bool bounces_device = false;
  // Of kBounce: the two agents speak over a local socket.
  bool has_near_frames = false;
  // Whether the peer can be bounced to.
  bool can_bounce = false;
  bool has_bulk_kernel = false;
  // Of kP2p: at most so many in a launch, and what they write across.
  unsigned blocks = 0;
  GpuLink link = GpuLink::kUnknown;
};

struct CopyExplanation {
  CopyMeans means = CopyMeans::kThread;
  // Never empty: what moves the bytes and, where another way would be faster, why not that one.
  std::string reason;
  // What a user can change to have it go the faster way; empty: nothing.
  std::string remedy;
};

// `groups` have at least one pair of slots.
CopyExplanation explain_copy(const CopySituation& situation, std::span<const PlanGroup> groups);

// Slices that NIXL sends as so many descriptors, of so few bytes on average, are what the bounce path is for.
bool is_for_an_arena(const SliceShape& shape);

}  // namespace kvt
