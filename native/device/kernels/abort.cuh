#pragma once

// How a launch is taken back: see AbortWord.
#include "kernel_abi.h"

namespace kvt {

__device__ __forceinline__ unsigned load_from_host(const unsigned* word) {
  unsigned value = 0;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Called by every thread of the block, before anything else is read. False: the slice was taken back, and everything it
// names but the word itself may be gone.
__device__ __forceinline__ bool may_begin(const CopyArguments& arguments) {
  if (arguments.is_gated == 0) return true;
  __shared__ unsigned is_cancelled;
  if (threadIdx.x == 0) {
    auto* word = reinterpret_cast<AbortWord*>(arguments.abort);
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(&word->started), "r"(1U) : "memory");
    asm volatile("fence.sc.sys;" ::: "memory");
    is_cancelled = load_from_host(&word->cancelled);
  }
  __syncthreads();
  return is_cancelled == 0;
}

// Role: one worker's look at the word. What a look reads is used at the next one, so that no tile waits for the host.
class AbortWatch {
 public:
  __device__ explicit AbortWatch(const CopyArguments& arguments)
      : word_(arguments.abort == 0 ? nullptr : &reinterpret_cast<const AbortWord*>(arguments.abort)->cancelled) {}

  // @param tile counts this worker's tiles
  __device__ __forceinline__ bool is_cancelled(unsigned tile) {
    if (word_ == nullptr || tile % kTilesPerLook != kTilesPerLook - 1) return false;
    const bool was = seen_ != 0;
    seen_ = load_from_host(word_);
    return was;
  }

 private:
  const unsigned* word_;
  unsigned seen_ = 0;
};

}  // namespace kvt
