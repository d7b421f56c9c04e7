#pragma once

// How a launch is taken back: see AbortWord and LaunchState.
#include "kernel_abi.h"

namespace kvt {

__device__ __forceinline__ unsigned load_from_host(const unsigned* word) {
  unsigned value = 0;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ unsigned load_verdict(const LaunchState* state) {
  unsigned value = 0;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(&state->verdict) : "memory");
  return value;
}

__device__ __forceinline__ void tell(LaunchState* state, unsigned verdict) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(&state->verdict), "r"(verdict) : "memory");
}

// One block asks the host, and tells the others.
__device__ __forceinline__ unsigned verdict_of(AbortWord* word, LaunchState* state) {
  if (atomicCAS(&state->has_leader, 0U, 1U) != 0U) {
    unsigned verdict = load_verdict(state);
    // The leader runs: it is the one that came first.
    while (verdict == kVerdictOpen) verdict = load_verdict(state);
    return verdict;
  }
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(&word->started), "r"(1U) : "memory");
  asm volatile("fence.sc.sys;" ::: "memory");
  const unsigned verdict = load_from_host(&word->cancelled) == 0 ? kVerdictGo : kVerdictStop;
  tell(state, verdict);
  return verdict;
}

// Called by every thread of the block, before anything else is read. False: the slice was taken back, and everything it
// names but its word and state may be gone.
__device__ __forceinline__ bool may_begin(const CopyArguments& arguments) {
  if (arguments.is_gated == 0) return true;
  __shared__ unsigned verdict;
  if (threadIdx.x == 0) {
    verdict =
        verdict_of(reinterpret_cast<AbortWord*>(arguments.abort), reinterpret_cast<LaunchState*>(arguments.state));
  }
  __syncthreads();
  return verdict != kVerdictStop;
}

// Role: the look for an abort while a launch copies, by its first worker. It takes the turns that are left, so that all
//   workers are over when they ask for their next one. What a look reads is used at the next, so that no tile waits.
class AbortWatch {
 public:
  // Once a tile.
  __device__ __forceinline__ void look(const CopyArguments& arguments, unsigned worker) {
    if (worker != 0 || arguments.abort == 0) return;
    if (seen_ != 0) {
      const unsigned turns = (arguments.tile_end - arguments.tile_begin) / arguments.turn + 1;
      atomicMax(&reinterpret_cast<LaunchState*>(arguments.state)->turns_taken, turns);
    }
    seen_ = load_from_host(&reinterpret_cast<const AbortWord*>(arguments.abort)->cancelled);
  }

 private:
  unsigned seen_ = 0;
};

}  // namespace kvt
