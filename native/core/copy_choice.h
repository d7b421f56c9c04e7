#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/fragment_table.h"
#include "core/plan_cursor.h"
#include "core/run.h"

namespace kvt {

// The kernels that copy pages to pages. kBulk goes by the bulk copy engine of compute capability 9.x and 10.x and takes
// aligned tables only; kRegisters takes anything.
enum class CopyMethod : std::uint8_t { kRegisters, kBulk };

// Why a slice does not go by the bulk kernel.
enum class BulkObstacle : std::uint8_t {
  kNone,
  kUnaligned,    // an address, stride or size is no multiple of 16
  kSmallPieces,  // the bulk engine pays for each
  kOldGpu,       // the GPU has no bulk engine
};
inline constexpr std::size_t kBulkObstacleCount = 4;

struct KernelChoice {
  CopyMethod method = CopyMethod::kBulk;
  BulkObstacle obstacle = BulkObstacle::kNone;
};

// Pieces below this go through registers, which then are the faster way (two H200, 16 blocks, pair.json: pieces of 64
// bytes 311 GB/s against 141, of 256 bytes 327 against 350).
inline constexpr std::uint64_t kSmallestBulkPiece = 256;

// Of the tables that a slice applies to any slots.
PieceTraits traits_of(std::span<const PlanGroup> groups);

// The kernel that copies a slice over p2p, and why it is not the bulk one: the one place that decides it. What a user
// can mend comes before what the GPU lacks.
KernelChoice choose_kernel(const PieceTraits& traits, bool has_bulk);

// Whether the copy engines take a slice over p2p instead of a kernel: few runs that are long on both sides. `runs`:
// filled when they do; may be null.
bool goes_by_engines(std::span<const PlanGroup> groups, std::vector<Run>* runs);

}  // namespace kvt
