#pragma once

#include <memory>
#include <vector>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/kernels/kernel_abi.h"

namespace kvt {

// Role: the words through which copies that a device has queued are taken back; see AbortWord.
// Ownership: owns the pinned memory. A word is given back when the device has run every launch that names it.
// Threading: one thread.
class AbortWords {
 public:
  explicit AbortWords(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}
  ~AbortWords();
  AbortWords(const AbortWords&) = delete;
  AbortWords& operator=(const AbortWords&) = delete;

  // kResource when there is no more pinned memory.
  Status take(AbortWord** out);
  void give_back(AbortWord* word) { free_.push_back(word); }

  // Asks the launches that look at `word` to stop. True: no block of a gated launch has begun, and none will touch
  // anything but the word from now on. Says nothing of launches that are not gated.
  static bool revoke(AbortWord* word);

 private:
  Status grow();

  std::shared_ptr<const CudaContext> context_;
  std::vector<void*> blocks_;
  std::vector<AbortWord*> free_;
};

}  // namespace kvt
