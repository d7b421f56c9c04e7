#pragma once

#include <cstddef>
#include <cstdint>

namespace kvt {

// One contiguous copy. `destination` is an address in the peer's own address space, as its page table published it.
struct Run {
  std::uintptr_t source = 0;
  std::uintptr_t destination = 0;
  std::size_t bytes = 0;
};

}  // namespace kvt
