#pragma once

namespace kvt {

constexpr unsigned kWarp = 32;

// splitmix64's finaliser and the seed chain of core/page_content.cc; both sides must agree bit for bit.
__device__ __forceinline__ unsigned long long finalise(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ unsigned long long mix(unsigned long long state, unsigned long long value) {
  return finalise(state ^ ((value + 1) * 0x9e3779b97f4a7c15ull));
}

}  // namespace kvt
