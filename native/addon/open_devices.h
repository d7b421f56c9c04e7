#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/page_kernels.h"

namespace kvt {

// Role: the GPUs that this environment uses outside its agents, each opened once.
// Threading: any thread. get and kernels block while the driver works: not for the JS thread.
// Ownership: shared with the jobs that use a device.
class OpenDevices {
 public:
  Status get(int ordinal, std::shared_ptr<const CudaContext>* out);
  Status kernels(int ordinal, std::shared_ptr<const PageKernels>* out);

  // Opened before, or null. Never blocks on the driver.
  std::shared_ptr<const CudaContext> find(int ordinal) const;

 private:
  mutable std::mutex mutex_;  // of the maps; never held while the driver works
  std::mutex opening_mutex_;  // one opens, the others wait for it
  std::map<int, std::shared_ptr<const CudaContext>> contexts_;
  std::map<int, std::shared_ptr<const PageKernels>> kernels_;
};

}  // namespace kvt
