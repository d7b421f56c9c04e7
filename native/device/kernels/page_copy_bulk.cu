// Paged copy by the bulk copy engine of sm_90 and newer: bytes go through shared memory, not through registers, so few
// blocks keep enough of them in flight to fill the link.
//
// Work: each of the first kBulkLanes lanes of a warp owns one staging tile and moves one tile after another through it:
// load, wait, store, wait until it was read. The warps of a block are at different steps, which overlaps the two ways.
// Needs: every address and size a multiple of 16 (the host checks the tables).
#include "addressing.h"
#include "mixing.cuh"

namespace kvt {
namespace {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBulkWarps* kWarp, 1)
    kvt_copy_bulk(const __grid_constant__ CopyArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char staging[];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  // No early return of idle lanes: they only skip the loop, and nothing below is collective.
  if (lane >= kBulkLanes) return;
  const unsigned worker = warp * kBulkLanes + lane;
  const unsigned slot = shared_address(staging + worker * kTileBytes);
  const unsigned barrier = shared_address(staging + kBulkWarps * kBulkLanes * kTileBytes + worker * 8);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

  unsigned parity = 0;
  const unsigned workers = gridDim.x * kBulkWarps * kBulkLanes;
  for (unsigned t = arguments.tile_begin + blockIdx.x + worker * gridDim.x; t < arguments.tile_end; t += workers) {
    const Tile tile = tile_at(arguments, t);
    // The staging tile is free again once the last store has read it.
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(tile.bytes * tile.pieces)
                 : "memory");
    for (unsigned p = 0; p < tile.pieces; ++p) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              slot + p * tile.bytes),
          "l"(tile.source + p * tile.source_piece_stride), "r"(tile.bytes), "r"(barrier)
          : "memory");
    }
    unsigned is_loaded = 0;
    while (is_loaded == 0) {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
          : "=r"(is_loaded)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
    parity ^= 1;
    for (unsigned p = 0; p < tile.pieces; ++p) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                       tile.destination + p * tile.destination_piece_stride),
                   "r"(slot + p * tile.bytes), "r"(tile.bytes)
                   : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // Written, not only read: the kernel's end is what tells others that the bytes are there.
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

}  // namespace kvt
