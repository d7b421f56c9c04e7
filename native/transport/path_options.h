#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/bounce_plan.h"
#include "core/note_gauges.h"
#include "core/path_cost.h"
#include "device/page_kernels.h"

namespace kvt {

// More blocks than any GPU has multiprocessors change nothing.
inline constexpr unsigned kMostCopyBlocks = 1024;

// kAuto lets each slice take the cheapest path that its peer can be reached by; the others take one or none.
enum class PathChoice : std::uint8_t { kAuto = 0, kP2p = 1, kRdma = 2, kBounce = 3 };

struct RouterOptions {
  PathChoice choice = PathChoice::kAuto;
  // The GPU, opened with the agent; otherwise the first device pool opens it.
  std::optional<int> device;
  // Blocks of one p2p copy.
  unsigned copy_blocks = kDefaultCopyBlocks;
  // Whether the base transport is one that can reach device memory itself (NIXL).
  bool base_reaches_devices = false;
  // GPU of the bounce arena; -1: there is none, or it is host memory.
  int arena_device = -1;
  // Which slices are bounced; absent: there is no arena. The transport below must then take every slice that it is
  // given under a ticket: who both chose, and whom the choice binds, is this one.
  std::optional<BounceThresholds> bounce = std::nullopt;
  // Counts the notes; null: the agent has no lane for them.
  std::shared_ptr<NoteGauges> notes = nullptr;
};

// Whether memory of one peer can be reached by a path, and why not. `reason` is never empty.
struct PathState {
  bool is_available = false;
  std::string reason;
};

struct PeerPaths {
  PathState p2p;
  PathState rdma;
  PathState bounce;
  // Of which memory the arena is: slices of that kind can be bounced.
  bool bounces_device = false;
  // Its frames go over a local socket, which takes microseconds; NIXL's notifications take tens of them.
  bool has_near_frames = false;
  // How fast host memory was found to move to it, in words; empty when it was not measured.
  std::string host_speed;
  // What every path of device memory to it crosses, where p2p found out.
  GpuLink link = GpuLink::kUnknown;
  // Of p2p: whether this GPU runs the bulk kernel, and the bound on the blocks of a copy.
  bool has_bulk_kernel = false;
  unsigned copy_blocks = 0;
};

}  // namespace kvt
