#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "core/unique_fd.h"

namespace kvt {

// Role: memory that two processes share through a descriptor. It has no name anywhere, so nothing is left behind when
// the
//   processes are killed; the kernel frees it with the last descriptor and mapping.
// Ownership: owns descriptor and mapping; both end with the object.
// Invariant: resident and sealed against shrinking, so that touching it never faults, whatever the other process does.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  // Zeroed. kResource when the machine has not that much memory free.
  static Status create(std::size_t size, SharedMapping* out);
  // Maps what a peer handed over. kTransport when it is smaller than `size` or could still shrink.
  static Status adopt(UniqueFd fd, std::size_t size, SharedMapping* out);

  std::uintptr_t base() const { return base_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  static Status map(UniqueFd fd, std::size_t size, SharedMapping* out);
  void unmap();

  UniqueFd fd_;
  std::uintptr_t base_ = 0;
  std::size_t size_ = 0;
};

}  // namespace kvt
