// Paged copy, gather and scatter: one kernel with the side that is not paged replaced by a linear range.
//
// Work: a warp takes one tile after another; lanes of a tile share its pieces. Nothing is kept between tiles, so any
// grid gives the same bytes. Loads bypass L1 (each byte is read once) and, with peers, the stores go out over the link.
#include "abort.cuh"
#include "addressing.h"
#include "mixing.cuh"
#include "tile_turns.cuh"

namespace kvt {
namespace {

enum class Side { kPaged, kLinearSource, kLinearDestination };

constexpr unsigned kUnroll = 8;

template <typename Word>
__device__ __forceinline__ Word load(const Word* from) {
  return __ldcs(from);
}

// `count` words by `lanes` lanes. All loads of a round are issued before its first store.
template <typename Word>
__device__ __forceinline__ void copy_words(Word* to, const Word* from, unsigned count, unsigned lane, unsigned lanes) {
  unsigned i = lane;
  for (; i + (kUnroll - 1) * lanes < count; i += kUnroll * lanes) {
    Word held[kUnroll];
#pragma unroll
    for (unsigned k = 0; k < kUnroll; ++k) held[k] = load(from + i + k * lanes);
#pragma unroll
    for (unsigned k = 0; k < kUnroll; ++k) to[i + k * lanes] = held[k];
  }
  for (; i < count; i += lanes) to[i] = load(from + i);
}

// Both sides agree modulo the word: bytes up to its first boundary, words, bytes of the tail.
template <typename Word>
__device__ __forceinline__ void copy_agreeing(char* to, const char* from, unsigned bytes, unsigned lane,
                                              unsigned lanes) {
  constexpr unsigned kSize = sizeof(Word);
  unsigned head = static_cast<unsigned>(-reinterpret_cast<unsigned long long>(to)) & (kSize - 1);
  if (head > bytes) head = bytes;
  for (unsigned i = lane; i < head; i += lanes) to[i] = from[i];
  const unsigned words = (bytes - head) / kSize;
  copy_words(reinterpret_cast<Word*>(to + head), reinterpret_cast<const Word*>(from + head), words, lane, lanes);
  for (unsigned i = head + words * kSize + lane; i < bytes; i += lanes) to[i] = from[i];
}

__device__ __forceinline__ void copy_bytes(unsigned long long to, unsigned long long from, unsigned bytes,
                                           unsigned lane, unsigned lanes) {
  auto* out = reinterpret_cast<char*>(to);
  const auto* in = reinterpret_cast<const char*>(from);
  const unsigned difference = static_cast<unsigned>(to ^ from);
  if ((difference & 15) == 0) {
    copy_agreeing<uint4>(out, in, bytes, lane, lanes);
  } else if ((difference & 7) == 0) {
    copy_agreeing<unsigned long long>(out, in, bytes, lane, lanes);
  } else if ((difference & 3) == 0) {
    copy_agreeing<unsigned>(out, in, bytes, lane, lanes);
  } else if ((difference & 1) == 0) {
    copy_agreeing<unsigned short>(out, in, bytes, lane, lanes);
  } else {
    copy_words(out, in, bytes, lane, lanes);
  }
}

__device__ __forceinline__ unsigned long long checksum_term(unsigned long long word, unsigned long long index) {
  return mix(word, index);
}

// Both sides and the piece's words agree modulo 16: what nearly every pool gives.
__device__ __forceinline__ unsigned long long copy_summed_aligned(ulonglong2* to, const ulonglong2* from,
                                                                  unsigned count, unsigned long long index,
                                                                  unsigned lane, unsigned lanes) {
  constexpr unsigned kRound = 4;
  unsigned long long sum = 0;
  const auto take = [&](unsigned i, const ulonglong2& pair) {
    to[i] = pair;
    sum += checksum_term(pair.x, index + 2 * i) + checksum_term(pair.y, index + 2 * i + 1);
  };
  unsigned i = lane;
  for (; i + (kRound - 1) * lanes < count; i += kRound * lanes) {
    ulonglong2 held[kRound];
#pragma unroll
    for (unsigned k = 0; k < kRound; ++k) held[k] = load(from + i + k * lanes);
#pragma unroll
    for (unsigned k = 0; k < kRound; ++k) take(i + k * lanes, held[k]);
  }
  for (; i < count; i += lanes) take(i, load(from + i));
  return sum;
}

// Copies a piece and returns its part of the sum. The words are those of the piece, whatever its alignment.
__device__ __forceinline__ unsigned long long copy_summed(unsigned long long to, unsigned long long from,
                                                          unsigned bytes, unsigned long long index, unsigned lane,
                                                          unsigned lanes) {
  auto* out = reinterpret_cast<unsigned char*>(to);
  const auto* in = reinterpret_cast<const unsigned char*>(from);
  unsigned done = 0;
  unsigned long long sum = 0;
  if (((to | from) & 15) == 0) {
    done = bytes / 16 * 2;
    sum = copy_summed_aligned(reinterpret_cast<ulonglong2*>(out), reinterpret_cast<const ulonglong2*>(in), bytes / 16,
                              index, lane, lanes);
  }
  for (unsigned w = done + lane; w < (bytes + 7) / 8; w += lanes) {
    unsigned long long word = 0;
    const unsigned here = bytes - w * 8 < 8 ? bytes - w * 8 : 8;
    for (unsigned b = 0; b < here; ++b) {
      const unsigned char byte = in[w * 8 + b];
      word |= static_cast<unsigned long long>(byte) << (8 * b);
      out[w * 8 + b] = byte;
    }
    sum += checksum_term(word, index + w);
  }
  return sum;
}

// Lanes that share a piece when several pieces make a tile: enough for one round of 16-byte words.
__device__ __forceinline__ unsigned lanes_per_piece(unsigned bytes, unsigned pieces) {
  unsigned lanes = kWarp;
  while (lanes > 1 && (lanes / 2) * 16 >= bytes && kWarp / lanes < pieces) lanes /= 2;
  return lanes;
}

template <Side side, bool isSummed>
__device__ __forceinline__ void copy_tiles(const CopyArguments& arguments) {
  if (!may_begin(arguments)) return;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warps = gridDim.x * (blockDim.x / kWarp);
  // Neighbours go to different blocks first, so that a small slice spreads over the grid.
  const unsigned worker = blockIdx.x + (threadIdx.x / kWarp) * gridDim.x;
  unsigned long long sum = 0;
  AbortWatch watch;
  for (TileTurns<true> turns(arguments, worker, warps); !turns.is_over(); turns.advance()) {
    watch.look(arguments, worker);
    const Tile tile = tile_at(arguments, turns.tile());
    const unsigned lanes = lanes_per_piece(tile.bytes, tile.pieces);
    for (unsigned p = lane / lanes; p < tile.pieces; p += kWarp / lanes) {
      unsigned long long from = tile.source + p * tile.source_piece_stride;
      unsigned long long to = tile.destination + p * tile.destination_piece_stride;
      unsigned bytes = tile.bytes;
      if constexpr (side != Side::kPaged) {
        // A chunk may begin and end inside a piece.
        const unsigned long long begin = tile.linear + static_cast<unsigned long long>(p) * tile.bytes;
        const unsigned long long low = begin < arguments.range_begin ? arguments.range_begin : begin;
        const unsigned long long high = begin + bytes > arguments.range_end ? arguments.range_end : begin + bytes;
        if (low >= high) continue;
        bytes = static_cast<unsigned>(high - low);
        const unsigned long long linear = arguments.linear + (low - arguments.range_begin);
        from = side == Side::kLinearSource ? linear : from + (low - begin);
        to = side == Side::kLinearDestination ? linear : to + (low - begin);
      }
      if constexpr (isSummed) {
        sum += copy_summed(to, from, bytes, tile.word + static_cast<unsigned long long>(p) * tile.words_per_piece,
                           lane % lanes, lanes);
      } else {
        copy_bytes(to, from, bytes, lane % lanes, lanes);
      }
    }
  }
  if constexpr (isSummed) {
    for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
      sum += __shfl_down_sync(0xffffffff, sum, distance);
    }
    if (lane == 0) atomicAdd(reinterpret_cast<unsigned long long*>(arguments.checksum), sum);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCopyThreads, 1) kvt_copy(const __grid_constant__ CopyArguments a) {
  copy_tiles<Side::kPaged, false>(a);
}
extern "C" __global__ void __launch_bounds__(kCopyThreads, 1) kvt_copy_summed(const __grid_constant__ CopyArguments a) {
  copy_tiles<Side::kPaged, true>(a);
}
extern "C" __global__ void __launch_bounds__(kCopyThreads, 1) kvt_gather(const __grid_constant__ CopyArguments a) {
  copy_tiles<Side::kLinearDestination, false>(a);
}
extern "C" __global__ void __launch_bounds__(kCopyThreads, 1) kvt_scatter(const __grid_constant__ CopyArguments a) {
  copy_tiles<Side::kLinearSource, false>(a);
}

}  // namespace kvt
