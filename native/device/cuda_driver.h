#pragma once

#include <string>

namespace kvt {

// What this process can do with CUDA, and why not.
struct CudaProbe {
  bool is_available = false;
  std::string reason;      // why not; empty when available
  std::string library;     // what was opened; empty when nothing was
  int driver_version = 0;  // 1000 * major + 10 * minor, as the driver gives it; 0 unknown
  int device_count = 0;
};

// Opens libcuda.so.1 and asks it. The library is never linked and, once opened, never closed: the driver keeps threads.
// Blocks for as long as the driver takes to start (0.1 s and more): not for the JS thread.
CudaProbe probe_cuda();

}  // namespace kvt
