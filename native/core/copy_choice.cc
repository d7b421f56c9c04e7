#include "core/copy_choice.h"

#include <cstddef>
#include <utility>

#include "core/path_cost.h"

namespace kvt {
namespace {

// Whether a slice surely has more runs than that. Stops looking as soon as it knows, which for scattered pages is soon;
// runs that join over fragments count apart.
bool has_more_runs_than(std::uint64_t limit, std::span<const PlanGroup> groups) {
  std::uint64_t runs = 0;
  for (const PlanGroup& group : groups) {
    const std::span<const std::int32_t> slots = group.slot_pairs;
    const std::span<const Fragment> fragments = group.table->fragments();
    std::uint64_t pieces = 0;
    for (const Fragment& fragment : fragments) pieces += fragment.count;
    const bool can_join = pieces == 1 && fragments.front().bytes == fragments.front().source.slot_stride &&
                          fragments.front().bytes == fragments.front().destination.slot_stride;
    if (!can_join) {
      runs += pieces * (slots.size() / 2);
    } else {
      runs += slots.empty() ? 0 : 1;
      for (std::size_t i = 2; i < slots.size() && runs <= limit; i += 2) {
        if (slots[i] != slots[i - 2] + 1 || slots[i + 1] != slots[i - 1] + 1) ++runs;
      }
    }
    if (runs > limit) return true;
  }
  return false;
}

}  // namespace

PieceTraits traits_of(std::span<const PlanGroup> groups) {
  PieceTraits traits;
  for (const PlanGroup& group : groups) {
    if (!group.slot_pairs.empty()) traits.add(group.table->traits());
  }
  return traits;
}

KernelChoice choose_kernel(const PieceTraits& traits, bool has_bulk) {
  BulkObstacle obstacle = BulkObstacle::kNone;
  if (traits.alignment < 16) {
    obstacle = BulkObstacle::kUnaligned;
  } else if (traits.mean_piece_bytes < kSmallestBulkPiece) {
    obstacle = BulkObstacle::kSmallPieces;
  } else if (!has_bulk) {
    obstacle = BulkObstacle::kOldGpu;
  }
  return {obstacle == BulkObstacle::kNone ? CopyMethod::kBulk : CopyMethod::kRegisters, obstacle};
}

bool goes_by_engines(std::span<const PlanGroup> groups, std::vector<Run>* runs) {
  std::uint64_t bytes = 0;
  for (const PlanGroup& group : groups) {
    bytes += std::uint64_t{group.table->bytes_per_pair()} * (group.slot_pairs.size() / 2);
  }
  // The cursor would copy every slice's slots only to find that there are too many runs.
  if (bytes < kEngineRunBytes || has_more_runs_than(4 * kMaxEngineRuns, groups)) return false;
  PlanCursor cursor(std::vector<PlanGroup>(groups.begin(), groups.end()));
  std::vector<Run> found;
  (void)cursor.take(kMaxEngineRuns, static_cast<std::size_t>(bytes), &found);
  if (!cursor.is_done() || bytes / found.size() < kEngineRunBytes) return false;
  if (runs != nullptr) *runs = std::move(found);
  return true;
}

}  // namespace kvt
