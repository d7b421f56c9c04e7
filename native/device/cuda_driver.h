#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/path_cost.h"

namespace kvt {

// What the driver says of one GPU without a context on it.
struct CudaDevice {
  std::string name;
  std::string uuid;      // 32 hexadecimal digits
  int architecture = 0;  // 90 for compute capability 9.0
  int multiprocessor_count = 0;
  std::size_t memory_bytes = 0;
  // The other GPUs whose memory its kernels can write: ordinals, and what joins each to this one.
  std::vector<int> peers;
  std::vector<GpuLink> links;
  // What a network card wrote may be seen late by this GPU's kernels unless it is flushed.
  bool inbound_writes_need_flush = false;
};

// What this process can do with CUDA, and why not.
struct CudaProbe {
  bool is_available = false;
  std::string reason;      // why not; empty when available
  std::string library;     // what was opened; empty when nothing was
  int driver_version = 0;  // 1000 * major + 10 * minor, as the driver gives it; 0 unknown
  int device_count = 0;
  std::vector<CudaDevice> devices;  // by ordinal
};

// Opens libcuda.so.1 and asks it. The library is never linked and, once opened, never closed: the driver keeps threads.
// Blocks for as long as the driver takes to start (0.1 s and more): not for the JS thread.
CudaProbe probe_cuda();

}  // namespace kvt
