#pragma once

// Which worker copies which tiles.
#include "kernel_abi.h"

namespace kvt {

// Role: the tiles of one worker, in turns of consecutive ones: the first turn by its number, each further one as it asks.
// Why: not all multiprocessors get the same share of a link. With turns settled beforehand the first worker ended when
//   the last had done half, and those that were left could not fill the link (two H200, 256 MiB, 16 blocks: 343 GB/s;
//   handed out: 363).
// Threading: kOfWarp: all lanes of a warp together, in step; otherwise one thread.
template <bool kOfWarp>
class TileTurns {
 public:
  __device__ __forceinline__ TileTurns(const CopyArguments& arguments, unsigned worker, unsigned workers)
      : arguments_(arguments), workers_(workers) {
    begin(worker);
  }

  __device__ __forceinline__ bool is_over() const { return tile_ >= arguments_.tile_end; }
  __device__ __forceinline__ unsigned tile() const { return tile_; }
  // Not of one that is over.
  __device__ __forceinline__ void advance() {
    ++tile_;
    if (((tile_ - arguments_.tile_begin) & (arguments_.turn - 1)) != 0) return;
    unsigned next = next_;
    if constexpr (kOfWarp) next = __shfl_sync(0xffffffff, next, 0);
    begin(workers_ + next);
  }

 private:
  // Asks for the turn after `turn` too, and does not touch the answer, so that nobody waits for it.
  __device__ __forceinline__ void begin(unsigned turn) {
    tile_ = arguments_.tile_begin + turn * arguments_.turn;
    next_ = turn;
    if (arguments_.state == 0 || is_over()) return;
    if (kOfWarp && threadIdx.x % 32 != 0) return;
    next_ = atomicAdd(&reinterpret_cast<LaunchState*>(arguments_.state)->turns_taken, 1U);
  }

  const CopyArguments& arguments_;
  unsigned workers_;
  unsigned next_ = 0;  // the next turn, less `workers_`; of a warp, in its first lane
  unsigned tile_ = 0;
};

}  // namespace kvt
