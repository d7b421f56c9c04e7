#pragma once

// How a launch is taken back: see AbortWord and AbortState.
#include "kernel_abi.h"

namespace kvt {

__device__ __forceinline__ unsigned load_from_host(const unsigned* word) {
  unsigned value = 0;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ unsigned load_verdict(const AbortState* state) {
  unsigned value = 0;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(&state->verdict) : "memory");
  return value;
}

__device__ __forceinline__ void tell(AbortState* state, unsigned verdict) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(&state->verdict), "r"(verdict) : "memory");
}

// One block asks the host, and tells the others.
__device__ __forceinline__ unsigned verdict_of(AbortWord* word, AbortState* state) {
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
    verdict = verdict_of(reinterpret_cast<AbortWord*>(arguments.abort),
                         reinterpret_cast<AbortState*>(arguments.abort_state));
  }
  __syncthreads();
  return verdict != kVerdictStop;
}

// Role: one worker's look for an abort. The first worker looks at the host's word and tells the others, who look at the
//   state. What a look reads is used at the next one, so that no tile waits for it.
class AbortWatch {
 public:
  // @param tile counts this worker's tiles
  __device__ __forceinline__ bool is_cancelled(const CopyArguments& arguments, unsigned worker, unsigned tile) {
    if (arguments.abort == 0 || tile % kTilesPerLook != kTilesPerLook - 1) return false;
    auto* state = reinterpret_cast<AbortState*>(arguments.abort_state);
    if (worker != 0) {
      const bool was = seen_ == kVerdictStop;
      seen_ = load_verdict(state);
      return was;
    }
    const bool was = seen_ != 0;
    if (was) tell(state, kVerdictStop);
    seen_ = load_from_host(&reinterpret_cast<const AbortWord*>(arguments.abort)->cancelled);
    return was;
  }

 private:
  unsigned seen_ = 0;
};

}  // namespace kvt
