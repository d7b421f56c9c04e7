#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"
#include "device/cuda_api.h"

namespace kvt {

// Role: one device's primary context, the one that the engine's own CUDA runtime uses, so that its streams, events and
//   memory are ours to name.
// Ownership: holds one reference on the primary context; never creates or destroys one of its own.
// Threading: immutable; any thread. Calls that need the context current make a CurrentContext first.
class CudaContext {
 public:
  // `ordinal` counts as CUDA_VISIBLE_DEVICES has it. Blocks while the context is made: not for the JS thread.
  static Status retain(int ordinal, std::shared_ptr<const CudaContext>* out);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaApi& api() const { return *api_; }
  cuda::Context handle() const { return context_; }
  cuda::Device device() const { return device_; }
  int ordinal() const { return ordinal_; }
  const cuda::Uuid& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }
  // 90 for compute capability 9.0.
  int architecture() const { return architecture_; }
  int multiprocessor_count() const { return multiprocessor_count_; }
  std::size_t memory_bytes() const { return memory_bytes_; }
  // The value of a device attribute; 0 when the driver does not know it.
  int attribute(int which) const;

 private:
  CudaContext() = default;

  const CudaApi* api_ = nullptr;
  cuda::Context context_ = nullptr;
  cuda::Device device_ = 0;
  int ordinal_ = 0;
  cuda::Uuid uuid_{};
  std::string name_;
  int architecture_ = 0;
  int multiprocessor_count_ = 0;
  std::size_t memory_bytes_ = 0;
};

// Makes a context current on this thread for as long as it lives, and then what was current before.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context) : api_(context.api()) {
    status_ = api_.check(api_.cuCtxPushCurrent(context.handle()), "cuCtxPushCurrent");
  }
  ~CurrentContext() {
    cuda::Context popped = nullptr;
    if (status_.is_ok()) (void)api_.cuCtxPopCurrent(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaApi& api_;
  Status status_;
};

}  // namespace kvt
