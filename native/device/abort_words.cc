#include "device/abort_words.h"

#include <atomic>
#include <cstddef>

namespace kvt {
namespace {

constexpr std::size_t kWordsPerBlock = 64;

}  // namespace

AbortWords::~AbortWords() {
  const CurrentContext current(*context_);
  for (void* block : blocks_) (void)context_->api().cuMemFreeHost(block);
}

Status AbortWords::take(AbortWord** out) {
  if (free_.empty()) {
    Status status = grow();
    if (!status.is_ok()) return status;
  }
  AbortWord* const word = free_.back();
  free_.pop_back();
  *word = {};
  *out = word;
  return Status::ok();
}

Status AbortWords::grow() {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  void* block = nullptr;
  // Devices know pinned memory by the host's own address.
  Status status = context_->api().check(
      context_->api().cuMemHostAlloc(&block, kWordsPerBlock * sizeof(AbortWord), cuda::kHostAllocPortable),
      "cuMemHostAlloc");
  if (!status.is_ok()) return status;
  blocks_.push_back(block);
  auto* const words = static_cast<AbortWord*>(block);
  for (std::size_t i = kWordsPerBlock; i > 0; --i) free_.push_back(words + i - 1);
  return Status::ok();
}

bool AbortWords::revoke(AbortWord* word) {
  std::atomic_ref<unsigned>(word->cancelled).store(1, std::memory_order_relaxed);
  // Pairs with the kernel's fence: see AbortWord.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return std::atomic_ref<unsigned>(word->started).load(std::memory_order_relaxed) == 0;
}

}  // namespace kvt
