#pragma once

// What the host hands to the kernels, byte for byte. Read by the C++ compiler and by nvcc, so plain types only.
//
// A slice is cut into tiles in canonical order: group, fragment, slot pair, piece. Tiles are counted by arithmetic on
// these tables, so a launch uploads the slots of its blocks and nothing per page or piece:
//
//   tile ->  group      by tile_begin
//        ->  fragment   by tile / pair_count against DeviceFragment::tile_begin
//        ->  pair, part by division; a part is some pieces, or some bytes of one piece
//   address = base + slot * slot_stride + piece * piece_stride + byte
//   canonical offset = linear_begin(group) + linear_begin(fragment) * pair_count + (pair * count + piece) * bytes +
//   byte

namespace kvt {

// At most this many bytes of one piece, or of several whole ones, are one tile: what a warp copies with eight 16-byte
// loads in flight per lane.
inline constexpr unsigned kTileBytes = 4096;
inline constexpr unsigned kMaxCopyGroups = 8;
inline constexpr unsigned kCopyThreads = 1024;
// The bulk kernel: warps of a block, and staging tiles of each. They fill the shared memory of one multiprocessor. Many
// warps with two tiles each hide the search for addresses better than few with more (8 blocks, two H200: 344 GB/s
// against 280 for 12 warps with four).
inline constexpr unsigned kBulkWarps = 24;
inline constexpr unsigned kBulkStages = 2;
inline constexpr unsigned kBulkSharedBytes = kBulkWarps * kBulkStages * kTileBytes;
inline constexpr unsigned kContentThreads = 256;

// What host and kernel tell each other about one slice, in pinned host memory. Each writes one word and reads the
// other's, with a full fence in between, so that at least one of them sees the other:
//
//   host    cancelled = 1;  fence;  started?    0: no block has begun, and none will
//   kernel  started = 1;    fence;  cancelled?  1: it ends without another access
//
// The words are a cache line apart. Nothing needs an atomic exchange, which the host's link may not have.
struct AbortWord {
  unsigned cancelled;  // written by the host
  unsigned unused_by_host[15];
  unsigned started;  // written by the kernel
  unsigned unused_by_kernel[15];
};

// What the blocks of one launch tell each other, in device memory; zero before it. One block asks the host for an abort
// and the others wait for what it says: a hundred readers of one word of host memory wait for each other, a microsecond
// each.
struct LaunchState {
  unsigned has_leader;
  unsigned verdict;      // one of the kVerdict numbers
  unsigned turns_taken;  // beyond the first of each worker; an abort takes all. See TileTurns
  unsigned unused[13];
};
inline constexpr unsigned kVerdictOpen = 0;
inline constexpr unsigned kVerdictGo = 1;
inline constexpr unsigned kVerdictStop = 2;

struct DeviceFragment {
  unsigned long long source;       // pool base + offset inside the slot
  unsigned long long destination;  // as mapped here
  unsigned long long source_slot_stride;
  unsigned long long destination_slot_stride;
  unsigned long long source_piece_stride;
  unsigned long long destination_piece_stride;
  unsigned long long bytes;         // of one piece
  unsigned long long linear_begin;  // bytes of one pair in the fragments before
  unsigned long long word_begin;    // checksum words of one pair in the fragments before
  unsigned count;                   // pieces per pair
  unsigned tile_begin;              // tiles of one pair in the fragments before
  unsigned tiles;                   // tiles of one pair
  unsigned pieces_per_tile;         // 0: a piece takes several tiles
};

struct CopyGroup {
  unsigned long long fragments;          // DeviceFragment[fragment_count]
  unsigned long long source_slots;       // int[pair_count * slot_step]
  unsigned long long destination_slots;  // likewise
  unsigned long long linear_begin;       // canonical offset of its first byte
  unsigned long long word_begin;
  unsigned fragment_count;
  unsigned pair_count;
  unsigned slot_step;
  unsigned tile_begin;  // of the launch
};

struct CopyArguments {
  CopyGroup groups[kMaxCopyGroups];
  unsigned group_count;
  unsigned tile_begin;  // tiles [tile_begin, tile_end) are looked at
  unsigned tile_end;
  unsigned turn;                   // consecutive tiles that one worker takes at a time: a power of two
  unsigned long long range_begin;  // canonical bytes [range_begin, range_end) are copied
  unsigned long long range_end;
  unsigned long long linear;    // gather: where byte range_begin goes; scatter: where it comes from
  unsigned long long checksum;  // 8 bytes that the sum is added to; 0: none
  unsigned long long abort;     // AbortWord that the launch looks at between tiles; 0: none. Needs `state`
  unsigned long long state;     // LaunchState; 0: none, and each worker's tiles are settled beforehand
  unsigned is_gated;            // whether blocks wait for the verdict before they touch anything else
  unsigned reserved;
};

struct DeviceContentEntry {
  unsigned long long base;  // pool base + offset inside the slot
  unsigned long long slot_stride;
  unsigned long long token_bytes;
  unsigned layer;
  unsigned role;
  unsigned heads;
  unsigned first_head;
  unsigned is_token_major;
  unsigned reserved;
};

struct ContentArguments {
  unsigned long long entries;  // DeviceContentEntry[entry_count]
  unsigned long long slots;    // int[slot_count], negative: a hole
  unsigned long long seeds;    // unsigned long long[token_count]
  unsigned long long result;   // ContentResult; fill: 0
  unsigned long long first_block;
  unsigned long long token_begin;
  unsigned long long token_count;
  unsigned entry_count;
  unsigned slot_count;
  unsigned tokens_per_block;
  unsigned reserved;
};

struct ContentResult {
  unsigned long long bytes_checked;
  unsigned long long wrong_bytes;
  // Smallest wrong place: the index of its token when all entries, blocks and places are counted in order. All ones:
  // none.
  unsigned long long first_wrong;
};

}  // namespace kvt
