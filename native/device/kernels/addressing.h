#pragma once

// Which bytes a tile stands for. The kernels use it, and the tests use it on the host to show that the tiles of a
// launch are its bytes, each once.
#ifdef __CUDACC__
#define KVT_DEVICE __device__ __forceinline__
#else
#define KVT_DEVICE inline
#endif

#ifdef __CUDACC__
#include "kernel_abi.h"
#else
#include "device/kernels/kernel_abi.h"
#endif

namespace kvt {

// The part of one tile: `pieces` whole pieces, or the bytes [begin, begin + bytes) of a single one.
struct Tile {
  unsigned long long source;
  unsigned long long destination;
  unsigned long long source_piece_stride;
  unsigned long long destination_piece_stride;
  unsigned long long linear;  // canonical offset of the first byte
  unsigned long long word;    // checksum index of the first byte's word
  unsigned pieces;
  unsigned bytes;  // of each piece that belong to the tile
  unsigned words_per_piece;
};

KVT_DEVICE const CopyGroup& group_of(const CopyArguments& arguments, unsigned tile) {
  unsigned g = 0;
  while (g + 1 < arguments.group_count && tile >= arguments.groups[g + 1].tile_begin) ++g;
  return arguments.groups[g];
}

// The last fragment whose tiles begin at or before `tile_of_pair`.
KVT_DEVICE unsigned fragment_of(const DeviceFragment* fragments, unsigned count, unsigned tile_of_pair) {
  unsigned low = 0;
  unsigned high = count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (fragments[middle].tile_begin <= tile_of_pair) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

KVT_DEVICE Tile tile_at(const CopyArguments& arguments, unsigned tile) {
  const CopyGroup& group = group_of(arguments, tile);
  const unsigned local = tile - group.tile_begin;
  const auto* fragments = reinterpret_cast<const DeviceFragment*>(group.fragments);
  const DeviceFragment& fragment = fragments[fragment_of(fragments, group.fragment_count, local / group.pair_count)];
  const unsigned in_fragment = local - fragment.tile_begin * group.pair_count;
  const unsigned pair = in_fragment / fragment.tiles;
  const unsigned part = in_fragment - pair * fragment.tiles;

  Tile out;
  unsigned piece = 0;
  unsigned long long byte = 0;
  if (fragment.pieces_per_tile == 0) {
    const unsigned parts = fragment.tiles / fragment.count;
    piece = part / parts;
    byte = static_cast<unsigned long long>(part - piece * parts) * kTileBytes;
    out.pieces = 1;
    const unsigned long long left = fragment.bytes - byte;
    out.bytes = left < kTileBytes ? static_cast<unsigned>(left) : kTileBytes;
  } else {
    piece = part * fragment.pieces_per_tile;
    const unsigned left = fragment.count - piece;
    out.pieces = left < fragment.pieces_per_tile ? left : fragment.pieces_per_tile;
    out.bytes = static_cast<unsigned>(fragment.bytes);
  }
  const unsigned long long ordinal = static_cast<unsigned long long>(pair) * fragment.count + piece;
  const unsigned long long words = (fragment.bytes + 7) / 8;
  out.words_per_piece = static_cast<unsigned>(words);
  out.linear = group.linear_begin + fragment.linear_begin * group.pair_count + ordinal * fragment.bytes + byte;
  out.word = group.word_begin + fragment.word_begin * group.pair_count + ordinal * words + byte / 8;
  out.source_piece_stride = fragment.source_piece_stride;
  out.destination_piece_stride = fragment.destination_piece_stride;
  const unsigned long long at = static_cast<unsigned long long>(pair) * group.slot_step;
  out.source = fragment.source + piece * fragment.source_piece_stride + byte;
  out.destination = fragment.destination + piece * fragment.destination_piece_stride + byte;
  if (group.source_slots != 0) {
    out.source += static_cast<unsigned long long>(reinterpret_cast<const int*>(group.source_slots)[at]) *
                  fragment.source_slot_stride;
  }
  if (group.destination_slots != 0) {
    out.destination += static_cast<unsigned long long>(reinterpret_cast<const int*>(group.destination_slots)[at]) *
                       fragment.destination_slot_stride;
  }
  return out;
}

}  // namespace kvt
