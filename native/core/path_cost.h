#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan_cursor.h"

namespace kvt {

// Ways a slice can take. Mirrored by src/agent/native.ts.
enum class DataPath : std::uint8_t { kHost = 0, kRdma = 1, kP2p = 2, kBounce = 3 };
inline constexpr std::size_t kDataPathCount = 4;

// What joins this GPU to the one that the peer's pages are on. Mirrored by src/agent/native.ts.
enum class GpuLink : std::uint8_t { kUnknown = 0, kNvlink = 1, kPcie = 2, kSameGpu = 3 };
inline constexpr std::size_t kGpuLinkCount = 4;

// What the cost of a slice depends on.
struct SliceShape {
  std::uint64_t bytes = 0;
  // Contiguous on both sides; estimated without looking at every piece.
  std::uint64_t runs = 0;
  // Pairs of slots: what names the pages in messages.
  std::uint64_t slots = 0;
  // Of p2p: the two sides of a piece do not agree modulo 16, so that a kernel moves narrower words.
  bool has_narrow_words = false;
  // Of p2p: pieces too small for the bulk kernel.
  bool has_small_pieces = false;
};

// p2p: from this mean run on, and up to so many of them, the copy engines copy instead of kernels: they are as fast and
// take no multiprocessor.
inline constexpr std::uint64_t kEngineRunBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMaxEngineRuns = 16;

SliceShape shape_of(std::span<const PlanGroup> groups);

// Microseconds from post to the last byte on an idle machine, by the constants in path_cost.cc. Whatever the path, the
// bytes cross `link`; kUnknown: as over NVLink.
double estimate_us(DataPath path, const SliceShape& shape, GpuLink link = GpuLink::kUnknown);

}  // namespace kvt
