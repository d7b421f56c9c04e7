#include "core/path_cost.h"

#include <algorithm>

#include "core/copy_choice.h"

namespace kvt {
namespace {

// Measured on two H200 of one host joined by 18 NVLinks, pages scattered on both sides, medians of 11 (docs/gpu.md has
// the figures and how they were taken). Only the order of the paths rests on them, so another GPU of the same kind of
// host needs no others; native/test/path_order_test.cc holds them to the order that was measured.
constexpr double kBytesPerUsOfGigabyte = 1e3;  // 1 GB/s is 1,000 bytes a microsecond

// p2p: one launch, then the kernel's rate with 16 blocks, whatever the pieces down to 256 bytes. Pages whose two sides
// agree modulo 16 move through registers as fast as by the bulk kernel.
constexpr double kP2pFixedUs = 12;
constexpr double kP2pRate = 348 * kBytesPerUsOfGigabyte;
// From half a MiB on: pages of 16 MiB. Those of 512 KiB take the same and what each turn of a bench costs.
constexpr double kP2pLongRunRate = 366 * kBytesPerUsOfGigabyte;
constexpr std::uint64_t kLongRunBytes = std::uint64_t{512} << 10;
// By the kernel alone (pair.json), 16 blocks: pieces of 64 bytes, and 32 KiB pieces whose two sides agree modulo 4
// only. Words of 2 bytes and of 1 were not measured; they are slower still.
constexpr double kP2pSmallPieceRate = 311 * kBytesPerUsOfGigabyte;
constexpr double kP2pNarrowWordRate = 291 * kBytesPerUsOfGigabyte;
// Few long runs go by the copy engines.
constexpr double kP2pEngineRate = 394 * kBytesPerUsOfGigabyte;

// rdma over cuda_ipc: the poster is held up for each descriptor, or the link's own rate where that takes longer.
constexpr double kRdmaFixedUs = 20;
constexpr double kRdmaRate = 361 * kBytesPerUsOfGigabyte;
constexpr double kRdmaRunUs = 5.3;

// bounce: hand-shake and two kernels, then gather, write and scatter behind each other. A WANT names 896 slots and
// costs 35 us of the threads on both sides: 4 KiB pages of one layer take 2.7 ms for 256 MiB, 32 KiB pages 1.4, and 4
// KiB pieces of 32 layers, of which a slot has 64, 1.0.
constexpr double kBounceFixedUs = 84;
constexpr double kBounceRate = 280 * kBytesPerUsOfGigabyte;
constexpr double kBounceSlotUs = 0.04;

// Assumed, not measured: what 16 lanes of PCIe 4.0 carry. Of whatever path, since each crosses the same link. That
// p2p comes first does not rest on it.
constexpr double kPcieRate = 25 * kBytesPerUsOfGigabyte;

// host: one core copies (two-core machine, 32 KiB pages scattered over 1 GiB).
constexpr double kHostFixedUs = 10;
constexpr double kHostRate = 12.7 * kBytesPerUsOfGigabyte;
constexpr double kHostRunUs = 0.1;

double of_bytes(const SliceShape& shape, double rate) { return static_cast<double>(shape.bytes) / rate; }

bool has_runs_of(std::uint64_t bytes, const SliceShape& shape) {
  return shape.runs > 0 && shape.bytes / shape.runs >= bytes;
}

double p2p_rate(const SliceShape& shape) {
  if (shape.runs <= kMaxEngineRuns && has_runs_of(kEngineRunBytes, shape)) return kP2pEngineRate;
  if (shape.has_narrow_words) return kP2pNarrowWordRate;
  if (shape.has_small_pieces) return kP2pSmallPieceRate;
  return has_runs_of(kLongRunBytes, shape) ? kP2pLongRunRate : kP2pRate;
}

std::uint64_t runs_of(const PlanGroup& group) {
  const std::uint64_t pairs = group.slot_pairs.size() / 2;
  std::uint64_t pieces = 0;
  for (const Fragment& fragment : group.table->fragments()) pieces += fragment.count;
  if (pieces != 1 || pairs == 0) return pieces * pairs;
  // Only whole slots can join the next pair's; a smaller piece leaves a gap.
  const Fragment& fragment = group.table->fragments().front();
  if (fragment.bytes != fragment.source.slot_stride || fragment.bytes != fragment.destination.slot_stride) return pairs;
  // A slice of a whole prompt would cost more to look at than to launch: its beginning stands for all of it.
  constexpr std::uint64_t kMostLookedAt = 4096;
  const std::uint64_t looked_at = std::min(pairs, kMostLookedAt);
  std::uint64_t runs = 1;
  for (std::size_t i = 2; i < 2 * looked_at; i += 2) {
    const bool joins =
        group.slot_pairs[i] == group.slot_pairs[i - 2] + 1 && group.slot_pairs[i + 1] == group.slot_pairs[i - 1] + 1;
    if (!joins) ++runs;
  }
  return runs * pairs / looked_at;
}

}  // namespace

SliceShape shape_of(std::span<const PlanGroup> groups) {
  SliceShape shape;
  for (const PlanGroup& group : groups) {
    const std::uint64_t pairs = group.slot_pairs.size() / 2;
    shape.bytes += group.table->bytes_per_pair() * pairs;
    shape.runs += runs_of(group);
    shape.slots += pairs;
  }
  const PieceTraits traits = traits_of(groups);
  shape.has_narrow_words = traits.common_word < 16;
  shape.has_small_pieces = traits.mean_piece_bytes < kSmallestBulkPiece;
  return shape;
}

double estimate_us(DataPath path, const SliceShape& shape, GpuLink link) {
  const auto runs = static_cast<double>(shape.runs);
  const auto over_link = [link](double rate) { return link == GpuLink::kPcie ? std::min(rate, kPcieRate) : rate; };
  switch (path) {
    case DataPath::kP2p:
      return kP2pFixedUs + of_bytes(shape, over_link(p2p_rate(shape)));
    case DataPath::kRdma:
      return kRdmaFixedUs + std::max(of_bytes(shape, over_link(kRdmaRate)), kRdmaRunUs * runs);
    case DataPath::kBounce:
      return kBounceFixedUs + of_bytes(shape, over_link(kBounceRate)) +
             kBounceSlotUs * static_cast<double>(shape.slots);
    case DataPath::kHost:
      return kHostFixedUs + of_bytes(shape, kHostRate) + kHostRunUs * runs;
  }
  return 0;
}

}  // namespace kvt
