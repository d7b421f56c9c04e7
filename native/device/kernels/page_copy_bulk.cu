// Paged copy by the bulk copy engine of sm_90 and newer: bytes go through shared memory, not through registers, so few
// warps keep enough of them in flight to fill the link.
//
// Work: a warp is a worker. Its lanes find the addresses of its next 32 tiles at once; then one lane moves those tiles
// through a ring of kBulkStages staging tiles. While one tile is stored, the loads of the next ones are under way. Warps
// share nothing, so there is no barrier between them.
//
//   stage:  load (mbarrier counts its bytes) -> wait -> store (one bulk group) -> read out -> next load
//
// Needs: every address and size a multiple of 16 (the host checks the tables).
#include "abort.cuh"
#include "addressing.h"
#include "mixing.cuh"

namespace kvt {
namespace {

// What the ring needs of a tile.
struct Moved {
  unsigned long long source;
  unsigned long long destination;
  unsigned long long source_piece_stride;
  unsigned long long destination_piece_stride;
  unsigned pieces;
  unsigned bytes;
};

// What the store of a stage needs of its tile.
struct Staged {
  unsigned long long destination;
  unsigned long long piece_stride;
  unsigned pieces;
  unsigned bytes;
};

struct BulkWarp {
  unsigned long long barriers[kBulkStages];
  Staged staged[kBulkStages];
  Moved next[kWarp];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Role: the staging tiles of one warp, opened and driven by its first lane alone.
class BulkRing {
 public:
  __device__ BulkRing(BulkWarp* warp, unsigned staging_at)
      : staged_(warp->staged), staging_at_(staging_at), barriers_at_(shared_address(warp->barriers)) {}

  __device__ void open() const {
    for (unsigned s = 0; s < kBulkStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_at_ + 8 * s) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  __device__ __forceinline__ void push(const Moved& tile) {
    if (loaded_ >= kBulkStages - 1) {
      store_next();
      // The stage that is loaded now was stored before that; the store just begun may go on.
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    }
    staged_[load_stage_] = {tile.destination, tile.destination_piece_stride, tile.pieces, tile.bytes};
    load(tile);
    ++loaded_;
    if (++load_stage_ == kBulkStages) load_stage_ = 0;
  }

  __device__ __forceinline__ void drain() {
    while (stored_ < loaded_) store_next();
    // Written, not only read: the kernel's end is what tells others that the bytes are there.
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }

 private:
  __device__ __forceinline__ void load(const Moved& tile) const {
    const unsigned barrier = barriers_at_ + 8 * load_stage_;
    const unsigned stage_at = staging_at_ + load_stage_ * kTileBytes;
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

  __device__ __forceinline__ void store_next() {
    const unsigned barrier = barriers_at_ + 8 * store_stage_;
    unsigned is_loaded = 0;
    while (is_loaded == 0) {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
          : "=r"(is_loaded)
          : "r"(barrier), "r"(parity_)
          : "memory");
    }
    const Staged tile = staged_[store_stage_];
    const unsigned stage_at = staging_at_ + store_stage_ * kTileBytes;
    for (unsigned p = 0; p < tile.pieces; ++p) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(tile.destination +
                                                                                      p * tile.piece_stride),
                   "r"(stage_at + p * tile.bytes), "r"(tile.bytes)
                   : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    ++stored_;
    if (++store_stage_ == kBulkStages) {
      store_stage_ = 0;
      parity_ ^= 1;
    }
  }

  Staged* staged_;
  unsigned staging_at_;
  unsigned barriers_at_;
  unsigned loaded_ = 0;
  unsigned stored_ = 0;
  unsigned load_stage_ = 0;
  unsigned store_stage_ = 0;
  unsigned parity_ = 0;
};

__device__ __forceinline__ Moved moved(const Tile& tile) {
  return {tile.source,  tile.destination, tile.source_piece_stride, tile.destination_piece_stride,
          tile.pieces, tile.bytes};
}
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(kMaxBulkWarps* kWarp, 1)
    kvt_copy_bulk(const __grid_constant__ CopyArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char staging[];
  __shared__ BulkWarp warps[kMaxBulkWarps];
  if (!may_begin(arguments)) return;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned workers = gridDim.x * (blockDim.x / kWarp);
  const unsigned worker = blockIdx.x + warp * gridDim.x;
  BulkWarp& own = warps[warp];
  constexpr unsigned kAllLanes = 0xffffffff;
  BulkRing ring(&own, shared_address(staging + warp * kBulkWarpBytes));
  if (lane == 0) ring.open();
  AbortWatch watch;
  bool is_over = false;
  for (unsigned begin = 0; !is_over; begin += kWarp) {
    const unsigned tile = tile_of_worker(arguments, worker, workers, begin + lane);
    const bool is_there = tile < arguments.tile_end;
    if (is_there) own.next[lane] = moved(tile_at(arguments, tile));
    const unsigned count = __popc(__ballot_sync(kAllLanes, is_there));
    __syncwarp();
    is_over = count < kWarp;
    if (lane == 0) {
      for (unsigned i = 0; i < count; ++i) {
        ring.push(own.next[i]);
        // After an abort nothing more is loaded; what is in the ring is stored.
        if (watch.is_cancelled(arguments, worker, begin + i)) {
          is_over = true;
          break;
        }
      }
    }
    // The list is read before it is written again.
    __syncwarp();
    is_over = __shfl_sync(kAllLanes, is_over ? 1 : 0, 0) != 0;
  }
  if (lane == 0) ring.drain();
#endif
}

}  // namespace kvt
