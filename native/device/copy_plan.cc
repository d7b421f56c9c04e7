#include "device/copy_plan.h"

#include <limits>
#include <string>
#include <utility>

namespace kvt {
namespace {

constexpr std::uint64_t kMaxTiles = std::numeric_limits<std::uint32_t>::max();

std::uint64_t tiles_of(const Fragment& fragment, std::uint32_t* pieces_per_tile) {
  if (fragment.bytes > kTileBytes) {
    *pieces_per_tile = 0;
    return fragment.count * ((fragment.bytes + kTileBytes - 1) / kTileBytes);
  }
  *pieces_per_tile = static_cast<std::uint32_t>(kTileBytes / fragment.bytes);
  return (fragment.count + *pieces_per_tile - 1) / *pieces_per_tile;
}

// The first tile of one part that holds the canonical byte `at` of that part, or a tile shortly before it.
std::uint64_t tile_holding(const CopyPart& part, std::uint64_t at) {
  std::uint64_t tile = 0;
  for (const DeviceFragment& fragment : part.table->fragments) {
    const std::uint64_t per_pair = fragment.bytes * fragment.count;
    const std::uint64_t bytes = per_pair * part.pair_count;
    if (at >= bytes) {
      at -= bytes;
      tile += std::uint64_t{fragment.tiles} * part.pair_count;
      continue;
    }
    tile += at / per_pair * fragment.tiles;
    const std::uint64_t in_pair = at % per_pair;
    const std::uint64_t piece = in_pair / fragment.bytes;
    if (fragment.pieces_per_tile != 0) return tile + piece / fragment.pieces_per_tile;
    return tile + piece * (fragment.tiles / fragment.count) + in_pair % fragment.bytes / kTileBytes;
  }
  return tile;
}

std::uint32_t tile_of_launch(std::span<const CopyPart> parts, std::uint64_t at) {
  std::uint64_t tile = 0;
  for (const CopyPart& part : parts) {
    const std::uint64_t bytes = part.table->bytes_per_pair * part.pair_count;
    if (at < bytes) return static_cast<std::uint32_t>(tile + tile_holding(part, at));
    at -= bytes;
    tile += std::uint64_t{part.table->tiles_per_pair} * part.pair_count;
  }
  return static_cast<std::uint32_t>(tile);
}

}  // namespace

Status make_copy_table(const FragmentTable& table, CopyTable* out) {
  CopyTable made;
  std::uint64_t tiles = 0;
  for (const Fragment& fragment : table.fragments()) {
    std::uint32_t pieces_per_tile = 0;
    const std::uint64_t here = tiles_of(fragment, &pieces_per_tile);
    if (fragment.count > kMaxTiles || tiles + here > kMaxTiles) {
      return Status(StatusCode::kResource, "the fragment table has more pieces than a kernel can count");
    }
    DeviceFragment next{};
    next.source = fragment.source.base + fragment.source_offset;
    next.destination = fragment.destination.base + fragment.destination_offset;
    next.source_slot_stride = fragment.source.slot_stride;
    next.destination_slot_stride = fragment.destination.slot_stride;
    next.source_piece_stride = fragment.source_stride;
    next.destination_piece_stride = fragment.destination_stride;
    next.bytes = fragment.bytes;
    next.linear_begin = made.bytes_per_pair;
    next.word_begin = made.words_per_pair;
    next.count = static_cast<std::uint32_t>(fragment.count);
    next.tile_begin = static_cast<std::uint32_t>(tiles);
    next.tiles = static_cast<std::uint32_t>(here);
    next.pieces_per_tile = pieces_per_tile;
    made.fragments.push_back(next);
    made.bytes_per_pair += fragment.bytes * fragment.count;
    made.words_per_pair += (fragment.bytes + 7) / 8 * fragment.count;
    tiles += here;
  }
  made.tiles_per_pair = static_cast<std::uint32_t>(tiles);
  made.traits = table.traits();
  *out = std::move(made);
  return Status::ok();
}

Status make_copy_arguments(std::span<const CopyPart> parts, CopyArguments* out) {
  if (parts.size() > kMaxCopyGroups) {
    return Status(StatusCode::kInvalidArgument, "one launch takes at most " + std::to_string(kMaxCopyGroups) +
                                                    " groups, not " + std::to_string(parts.size()));
  }
  CopyArguments made{};
  std::uint64_t tiles = 0;
  std::uint64_t bytes = 0;
  std::uint64_t words = 0;
  for (const CopyPart& part : parts) {
    if (part.pair_count == 0 || part.table->fragments.empty()) continue;
    CopyGroup& group = made.groups[made.group_count++];
    group.fragments = part.fragments_at;
    group.source_slots = part.source_slots_at;
    group.destination_slots = part.destination_slots_at;
    group.linear_begin = bytes;
    group.word_begin = words;
    group.fragment_count = static_cast<std::uint32_t>(part.table->fragments.size());
    group.pair_count = part.pair_count;
    group.slot_step = part.slot_step;
    group.tile_begin = static_cast<std::uint32_t>(tiles);
    tiles += std::uint64_t{part.table->tiles_per_pair} * part.pair_count;
    bytes += part.table->bytes_per_pair * part.pair_count;
    words += part.table->words_per_pair * part.pair_count;
    // The kernel's grid adds its own size to the last tile, so some room stays above.
    if (tiles > kMaxTiles / 2) return Status(StatusCode::kResource, "the slice has more tiles than a kernel can count");
  }
  made.tile_end = static_cast<std::uint32_t>(tiles);
  made.range_end = bytes;
  *out = made;
  return Status::ok();
}

void restrict_range(std::span<const CopyPart> parts, std::uint64_t begin, std::uint64_t end, CopyArguments* arguments) {
  arguments->range_begin = begin;
  arguments->range_end = end;
  arguments->tile_begin = tile_of_launch(parts, begin);
  arguments->tile_end = end == begin ? arguments->tile_begin : tile_of_launch(parts, end - 1) + 1;
}

}  // namespace kvt
