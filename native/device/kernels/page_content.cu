// Fill and verify: the same bytes as core/page_content, on the device. One warp per token of one head.
#include "kernel_abi.h"
#include "mixing.cuh"

namespace kvt {
namespace {

constexpr unsigned long long kWordStep = 0xd1342543de82ef95ull;
constexpr unsigned long long kTagSeed = 0x243f6a8885a308d3ull;

__device__ __forceinline__ unsigned char byte_of(unsigned long long base, unsigned long long index) {
  return static_cast<unsigned char>((base + (index / 8) * kWordStep) >> (8 * (index % 8)));
}

__device__ __forceinline__ void fill_token(unsigned long long at, unsigned long long bytes, unsigned long long base,
                                           unsigned lane) {
  const unsigned long long words = at % 8 == 0 ? bytes / 8 : 0;
  for (unsigned long long k = lane; k < words; k += kWarp) {
    reinterpret_cast<unsigned long long*>(at)[k] = base + k * kWordStep;
  }
  for (unsigned long long i = words * 8 + lane; i < bytes; i += kWarp) {
    reinterpret_cast<unsigned char*>(at)[i] = byte_of(base, i);
  }
}

__device__ __forceinline__ unsigned verify_token(unsigned long long at, unsigned long long bytes,
                                                 unsigned long long base, unsigned lane) {
  const unsigned long long words = at % 8 == 0 ? bytes / 8 : 0;
  unsigned wrong = 0;
  for (unsigned long long k = lane; k < words; k += kWarp) {
    unsigned long long difference = reinterpret_cast<const unsigned long long*>(at)[k] ^ (base + k * kWordStep);
    for (; difference != 0; difference >>= 8) wrong += (difference & 0xff) != 0;
  }
  for (unsigned long long i = words * 8 + lane; i < bytes; i += kWarp) {
    wrong += reinterpret_cast<const unsigned char*>(at)[i] != byte_of(base, i);
  }
  return wrong;
}

template <bool isVerify>
__device__ __forceinline__ void visit_tokens(const ContentArguments& job) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned long long warp = (static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const unsigned long long warps = static_cast<unsigned long long>(gridDim.x) * (blockDim.x / kWarp);
  const auto* entries = reinterpret_cast<const DeviceContentEntry*>(job.entries);
  const auto* seeds = reinterpret_cast<const unsigned long long*>(job.seeds);
  unsigned long long checked = 0;
  unsigned long long wrong = 0;
  unsigned long long first = ~0ull;
  unsigned long long before = 0;  // places of the entries before
  for (unsigned e = 0; e < job.entry_count; ++e) {
    const DeviceContentEntry& entry = entries[e];
    const unsigned long long places = static_cast<unsigned long long>(entry.heads) * job.tokens_per_block;
    for (unsigned long long i = warp; i < places * job.slot_count; i += warps) {
      const unsigned long long block = i / places;
      const unsigned place = static_cast<unsigned>(i % places);
      const unsigned head = entry.is_token_major != 0 ? place % entry.heads : place / job.tokens_per_block;
      const unsigned in_block = entry.is_token_major != 0 ? place / entry.heads : place % job.tokens_per_block;
      const int slot = reinterpret_cast<const int*>(job.slots)[block];
      const unsigned long long token = (job.first_block + block) * job.tokens_per_block + in_block;
      if (slot < 0 || token < job.token_begin || token - job.token_begin >= job.token_count) continue;
      const unsigned long long tag = mix(mix(mix(kTagSeed, entry.layer), entry.role),
                                         static_cast<unsigned long long>(entry.first_head) + head);
      const unsigned long long base = finalise(seeds[token - job.token_begin] ^ tag);
      const unsigned long long at =
          entry.base + static_cast<unsigned long long>(slot) * entry.slot_stride + place * entry.token_bytes;
      if constexpr (isVerify) {
        const unsigned here = verify_token(at, entry.token_bytes, base, lane);
        if (lane == 0) checked += entry.token_bytes;
        wrong += here;
        if (here != 0 && before + i < first) first = before + i;
      } else {
        fill_token(at, entry.token_bytes, base, lane);
      }
    }
    before += places * job.slot_count;
  }
  if constexpr (isVerify) {
    auto* result = reinterpret_cast<ContentResult*>(job.result);
    if (checked != 0) atomicAdd(&result->bytes_checked, checked);
    if (wrong != 0) {
      atomicAdd(&result->wrong_bytes, wrong);
      atomicMin(&result->first_wrong, first);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kContentThreads) kvt_fill(const __grid_constant__ ContentArguments job) {
  visit_tokens<false>(job);
}
extern "C" __global__ void __launch_bounds__(kContentThreads) kvt_verify(const __grid_constant__ ContentArguments job) {
  visit_tokens<true>(job);
}

}  // namespace kvt
