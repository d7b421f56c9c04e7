#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda_abi.h"

namespace kvt {

enum class PoolSharing : std::uint8_t {
  kNone = 0,        // this process alone
  kDescriptor = 1,  // a POSIX descriptor, passed over a socket
  kIpc = 2,         // 64 bytes, passed in any message
};

// What a process on the same machine needs to map a pool. The pool's bytes are [offset, offset + size) of the
// allocation that the handle names.
struct PoolHandle {
  PoolSharing sharing = PoolSharing::kNone;
  int descriptor = -1;  // kDescriptor; borrowed from the pool
  cuda::IpcMemoryHandle ipc{};
  std::size_t allocation_size = 0;
  std::size_t offset = 0;
  std::size_t size = 0;
  cuda::Uuid device{};
};

}  // namespace kvt
