// Paged copy by the bulk copy engine of sm_90 and newer: bytes go through shared memory, not through registers, so few
// blocks keep enough of them in flight to fill the link.
//
// Work: one lane of each warp moves tiles through a ring of kBulkStages staging tiles. While one tile is stored, the
// next one's load is under way. Warps share nothing but the turns, so there is no barrier between them.
//
//   stage:  load (mbarrier counts its bytes) -> wait -> store (one bulk group) -> read out -> next load
//
// Needs: every address and size a multiple of 16 (the host checks the tables).
#include "abort.cuh"
#include "addressing.h"
#include "mixing.cuh"
#include "tile_turns.cuh"

namespace kvt {
namespace {

// What the store of a stage needs of its tile. Written and read by the one lane that owns the ring.
struct Staged {
  unsigned long long destination;
  unsigned long long piece_stride;
  unsigned pieces;
  unsigned bytes;
};

struct BulkRing {
  unsigned long long barriers[kBulkStages];
  Staged staged[kBulkStages];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void load_tile(const Tile& tile, unsigned stage_at, unsigned barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(tile.bytes * tile.pieces)
               : "memory");
  for (unsigned p = 0; p < tile.pieces; ++p) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            stage_at + p * tile.bytes),
        "l"(tile.source + p * tile.source_piece_stride), "r"(tile.bytes), "r"(barrier)
        : "memory");
  }
}

__device__ __forceinline__ void await_load(unsigned barrier, unsigned parity) {
  unsigned is_loaded = 0;
  while (is_loaded == 0) {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_loaded)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

__device__ __forceinline__ void store_tile(const Staged& tile, unsigned stage_at) {
  for (unsigned p = 0; p < tile.pieces; ++p) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(tile.destination +
                                                                                    p * tile.piece_stride),
                 "r"(stage_at + p * tile.bytes), "r"(tile.bytes)
                 : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(kBulkWarps* kWarp, 1)
    kvt_copy_bulk(const __grid_constant__ CopyArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char staging[];
  __shared__ BulkRing rings[kBulkWarps];
  if (!may_begin(arguments) || threadIdx.x % kWarp != 0) return;
  const unsigned warp = threadIdx.x / kWarp;
  BulkRing& ring = rings[warp];
  const unsigned ring_at = shared_address(staging + warp * kBulkStages * kTileBytes);
  const unsigned barriers_at = shared_address(ring.barriers);
  for (unsigned s = 0; s < kBulkStages; ++s) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_at + 8 * s) : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

  // Neighbours go to different blocks first, so that a small slice spreads over the grid.
  const unsigned worker = blockIdx.x + warp * gridDim.x;
  TileTurns<false> turns(arguments, worker, gridDim.x * kBulkWarps);
  AbortWatch watch;
  unsigned loaded = 0;
  const auto load_next_into = [&](unsigned stage) {
    const Tile tile = tile_at(arguments, turns.tile());
    ring.staged[stage] = {tile.destination, tile.destination_piece_stride, tile.pieces, tile.bytes};
    load_tile(tile, ring_at + stage * kTileBytes, barriers_at + 8 * stage);
    ++loaded;
    watch.look(arguments, worker);
    turns.advance();
  };
  for (unsigned s = 0; s < kBulkStages && !turns.is_over(); ++s) load_next_into(s);
  unsigned stage = 0;
  unsigned parity = 0;
  for (unsigned stored = 0; stored < loaded; ++stored) {
    await_load(barriers_at + 8 * stage, parity);
    store_tile(ring.staged[stage], ring_at + stage * kTileBytes);
    if (!turns.is_over()) {
      // Loaded again once its store has read it; the load of the other stage goes on.
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      load_next_into(stage);
    }
    if (++stage == kBulkStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Written, not only read: the kernel's end is what tells others that the bytes are there.
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

}  // namespace kvt
