#pragma once

#include <string>
#include <vector>

#include "transport/nixl_search.h"

namespace kvt::nixl {

// Sets what UCX must see before the first agent:
// - no signal handlers: V8 uses SIGSEGV itself;
// - no RTLD_DEEPBIND: UCX walks environ, of which the node binary holds its own copy;
// - no memory hooks: to try them UCX calls sbrk and brk without malloc's lock, and what another thread allocated
//   meanwhile is cut off. Measured with threads that allocate while an agent opens: 4 of 60 processes crashed, and none
//   of 200 without hooks. Hooks serve caches for unregistered memory; all of ours is registered.
// Values the user set stay unless they would break the process; each one replaced is noted.
// Threading: writes the environment; call it before other threads of the process start to use it in earnest.
void prepare_ucx_environment(std::vector<std::string>* notes);

// What is known about CUDA on this machine without starting it.
struct CudaDriver {
  bool present = false;
  CudaMajor major = CudaMajor::k13;
};
CudaDriver find_cuda_driver();

// UCX's CUDA modules need libcudart, which no NIXL wheel brings, and without it UCX silently starts without CUDA.
// Loads it by absolute path, for good, so that its soname satisfies the modules. Notes its place, or what to install,
// which is also the answer then; empty when it is there.
std::string preload_cuda_runtime(CudaMajor major, const std::string& nixl_path, std::vector<std::string>* notes);

}  // namespace kvt::nixl
