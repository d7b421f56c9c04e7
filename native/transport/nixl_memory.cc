#include "transport/nixl_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvt::nixl {
namespace {

Status out_of_memory(std::size_t size, int error) {
  return {StatusCode::kResource,
          "cannot allocate a pool of " + std::to_string(size) + " bytes: " + std::strerror(error)};
}

// Faults every page in now. Linux 5.14 reports a shortage; on an older one a plain touch has to do.
int populate(void* base, std::size_t size, std::size_t page) {
  if (::madvise(base, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  volatile char* bytes = static_cast<volatile char*>(base);
  for (std::size_t offset = 0; offset < size; offset += page) bytes[offset] = 0;
  return 0;
}

}  // namespace

Status map_resident(std::size_t size, std::uintptr_t* base, std::size_t* mapped_size) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (size == 0 || size > std::numeric_limits<std::size_t>::max() - page) {
    return {StatusCode::kInvalidArgument, "a pool of " + std::to_string(size) + " bytes cannot be allocated"};
  }
  const std::size_t rounded = (size + page - 1) / page * page;
  void* memory = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return out_of_memory(size, errno);
  // Advice only: huge pages save registration and copy time, and a kernel without them is still right.
  (void)::madvise(memory, rounded, MADV_HUGEPAGE);
  (void)::madvise(memory, rounded, MADV_DONTFORK);
  const int error = populate(memory, rounded, page);
  if (error != 0) {
    ::munmap(memory, rounded);
    return out_of_memory(size, error);
  }
  *base = reinterpret_cast<std::uintptr_t>(memory);
  *mapped_size = rounded;
  return Status::ok();
}

void unmap(std::uintptr_t base, std::size_t mapped_size) { ::munmap(reinterpret_cast<void*>(base), mapped_size); }

}  // namespace kvt::nixl
