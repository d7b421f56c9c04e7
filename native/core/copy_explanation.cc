#include "core/copy_explanation.h"

#include <cstddef>
#include <utility>

#include "core/bounce_plan.h"
#include "core/copy_choice.h"
#include "core/page_copy.h"

namespace kvt {
namespace {

// Below this many blocks a kernel does not fill a link of 18 NVLinks (pair.json: 4 blocks 180 GB/s, 8 blocks 353, 16
// blocks 364).
constexpr unsigned kFillingBlocks = 8;

constexpr const char* kAlignPages =
    "place pools, slots and layers of both sides' page tables at multiples of 16 bytes: base, slotStride, and offset "
    "and "
    "bytes of every piece";
constexpr const char* kEnlargePieces =
    "pieces grow with the same blockLayout on both sides ('HND' where tensor-parallel sizes differ), the same "
    "tensor-parallel size, or more tokens per block";
constexpr const char* kGiveAnArena =
    "set kvCacheBounceSizeMb on both sides (bounce.sizeBytes of createAgent, with device where pages are on a GPU): "
    "small "
    "pieces then travel packed";

std::string counted(std::uint64_t number, const char* one) {
  return std::to_string(number) + " " + one + (number == 1 ? "" : "s");
}

// The first number of a slice's tables that is no multiple of 16, in words.
std::string first_unaligned(std::span<const PlanGroup> groups) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].slot_pairs.empty()) continue;
    const std::vector<Fragment>& fragments = groups[g].table->fragments();
    for (std::size_t f = 0; f < fragments.size(); ++f) {
      const Fragment& fragment = fragments[f];
      const bool has_strides = fragment.count > 1;
      const std::pair<const char*, std::uint64_t> numbers[] = {
          {"the source's base + offset", fragment.source.base + fragment.source_offset},
          {"the destination's base + offset", fragment.destination.base + fragment.destination_offset},
          {"the source's slotStride", fragment.source.slot_stride},
          {"the destination's slotStride", fragment.destination.slot_stride},
          {"the size of a piece", fragment.bytes},
          {"the source's stride of pieces", has_strides ? fragment.source_stride : 0},
          {"the destination's stride of pieces", has_strides ? fragment.destination_stride : 0}};
      for (const auto& [name, number] : numbers) {
        if (number % 16 == 0) continue;
        return std::string(name) + " (group " + std::to_string(g) + ", fragment " + std::to_string(f) + ") is " +
               std::to_string(number) + ", no multiple of 16";
      }
    }
  }
  return "an address or size is no multiple of 16";
}

std::string at_a_time(unsigned word) { return counted(word, "byte") + " at a time"; }

CopyExplanation explain_p2p(const CopySituation& situation, std::span<const PlanGroup> groups) {
  if (goes_by_engines(groups, nullptr)) {
    return {CopyMeans::kEngines,
            "few runs that are long on both sides: the GPU's copy engines move them and no "
            "multiprocessor is taken",
            {}};
  }
  const PieceTraits traits = traits_of(groups);
  const std::string pieces = "pieces of " + counted(traits.mean_piece_bytes, "byte") + " on average";
  CopyExplanation out{CopyMeans::kRegisters, {}, {}};
  switch (choose_kernel(traits, situation.has_bulk_kernel).obstacle) {
    case BulkObstacle::kNone:
      out.means = CopyMeans::kBulk;
      out.reason = "aligned " + pieces + " go by the bulk kernel";
      break;
    case BulkObstacle::kUnaligned:
      out.reason = "pages go through registers, " + at_a_time(traits.common_word) +
                   ", and not by the bulk kernel: " + first_unaligned(groups);
      out.remedy = kAlignPages;
      break;
    case BulkObstacle::kSmallPieces:
      out.reason = pieces + " go through registers and not by the bulk kernel, which takes pieces of " +
                   std::to_string(kSmallestBulkPiece) + " bytes and more";
      out.remedy = kEnlargePieces;
      break;
    case BulkObstacle::kOldGpu:
      out.reason = "aligned " + pieces + " go through registers: the bulk kernel needs compute capability 9.x or 10.x";
      break;
  }
  out.reason += "; at most " + counted(situation.blocks, "block");
  // Fewer fill PCIe.
  if (situation.link != GpuLink::kPcie && situation.blocks < kFillingBlocks && out.remedy.empty()) {
    out.reason += situation.link == GpuLink::kSameGpu ? ", which does not fill the GPU's memory bandwidth"
                                                      : ", which does not fill NVLink";
    out.remedy = "raise copyBlocks to " + std::to_string(kFillingBlocks) + " or more";
  }
  return out;
}

CopyExplanation explain_bounce(const CopySituation& situation, std::span<const PlanGroup> groups) {
  const char* const frames = situation.has_near_frames
                                 ? "; frames go over a local socket"
                                 : "; frames go by NIXL's notifications, as to any peer on another machine, in another "
                                   "network namespace or of another user";
  if (!situation.bounces_device) {
    return {CopyMeans::kThread,
            std::string("the progress threads of both sides copy between pages and arenas") + frames,
            {}};
  }
  // Each side's pages meet packed bytes, whose places are the sums of sizes: what agrees with the other side's pages is
  // of no use.
  const unsigned word = traits_of(groups).alignment;
  CopyExplanation out{CopyMeans::kRegisters, "gather and scatter kernels go through registers, " + at_a_time(word), {}};
  if (word < 16) {
    out.reason += " instead of 16: " + first_unaligned(groups);
    out.remedy = kAlignPages;
  }
  out.reason += frames;
  return out;
}

CopyExplanation explain_descriptors(const CopySituation& situation, std::span<const PlanGroup> groups) {
  const SliceShape shape = shape_of(groups);
  CopyExplanation out{CopyMeans::kDescriptors,
                      "about " + counted(shape.runs, "descriptor") + " of " +
                          counted(shape.bytes / shape.runs, "byte") + " on average, one per contiguous run",
                      {}};
  if (!is_for_an_arena(shape) || situation.can_bounce) return out;
  out.reason += ", each of which holds up the progress thread";
  out.remedy = kGiveAnArena;
  return out;
}

// Whether copy_pages can take the pieces of neighbouring pages in turns.
bool may_take_turns(const Fragment& fragment) {
  std::uintptr_t places = (fragment.destination.base + fragment.destination_offset) | fragment.destination.slot_stride;
  if (fragment.count > 1) places |= fragment.destination_stride;
  return takes_turns(places, fragment.bytes);
}

CopyExplanation explain_thread(std::span<const PlanGroup> groups) {
  bool takes_turns = true;
  for (const PlanGroup& group : groups) {
    if (group.slot_pairs.empty()) continue;
    for (const Fragment& fragment : group.table->fragments()) takes_turns = takes_turns && may_take_turns(fragment);
  }
  if (takes_turns) return {CopyMeans::kThread, "the progress thread copies, several pieces of one size in turns", {}};
  CopyExplanation out{CopyMeans::kThread, "the progress thread copies one piece after the other", {}};
  if (!kCopiesTakeTurns) return out;
  out.reason += ", not several in turns";
  out.remedy = "place destination pages at multiples of 64 bytes, with pieces of 256 bytes or more in multiples of 128";
  return out;
}

}  // namespace

bool is_for_an_arena(const SliceShape& shape) {
  constexpr BounceThresholds kThresholds;
  return shape.runs >= kThresholds.min_descriptor_count &&
         shape.bytes / shape.runs <= kThresholds.max_average_descriptor_bytes;
}

CopyExplanation explain_copy(const CopySituation& situation, std::span<const PlanGroup> groups) {
  switch (situation.path) {
    case DataPath::kP2p:
      return explain_p2p(situation, groups);
    case DataPath::kBounce:
      return explain_bounce(situation, groups);
    case DataPath::kRdma:
      return explain_descriptors(situation, groups);
    case DataPath::kHost:
      break;
  }
  return situation.is_nixl ? explain_descriptors(situation, groups) : explain_thread(groups);
}

}  // namespace kvt
