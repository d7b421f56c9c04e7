#include "transport/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvt {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string errno_text() { return std::strerror(errno); }

// The first number that `format` finds in a line of the file, or 0.
std::size_t read_number(const char* path, const char* format) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  char line[128];
  std::size_t number = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, format, &number) == 1) break;
  }
  std::fclose(file);
  return number;
}

// What the machine has free, or the container may use at most if that is less; 0 when neither can be read.
std::size_t available_memory() {
  const std::size_t machine = read_number("/proc/meminfo", "MemAvailable: %zu kB") * 1024;
  const std::size_t container = read_number("/sys/fs/cgroup/memory.max", "%zu");
  if (machine == 0 || container == 0) return std::max(machine, container);
  return std::min(machine, container);
}

// An address range aligned so that huge pages can back it, or MAP_FAILED.
void* reserve(std::size_t size) {
  if (size < kHugePage) return ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* wide = ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (wide == MAP_FAILED) return MAP_FAILED;
  auto* begin = static_cast<char*>(wide);
  const std::size_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(wide) % kHugePage) % kHugePage;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t mapped = (size + page - 1) / page * page;
  if (skip > 0) ::munmap(begin, skip);
  ::munmap(begin + skip + mapped, size + kHugePage - skip - mapped);
  return begin + skip;
}

}  // namespace

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::move(other.fd_)), base_(std::exchange(other.base_, 0)), size_(std::exchange(other.size_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    base_ = std::exchange(other.base_, 0);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMapping::~SharedMapping() { unmap(); }

void SharedMapping::unmap() {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): mappings are known by address
  if (base_ != 0) ::munmap(reinterpret_cast<void*>(base_), size_);
  base_ = 0;
  size_ = 0;
}

Status SharedMapping::map(UniqueFd fd, std::size_t size, SharedMapping* out) {
  void* place = reserve(size);
  void* base = place == MAP_FAILED ? MAP_FAILED
                                   : ::mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return Status(StatusCode::kResource, "cannot map " + std::to_string(size) + " bytes: " + errno_text());
  }
  SharedMapping mapping;
  mapping.fd_ = std::move(fd);
  mapping.base_ = reinterpret_cast<std::uintptr_t>(base);
  mapping.size_ = size;

  // Huge pages are a matter of speed only: where the kernel has none for shared memory, the small ones do.
  (void)::madvise(base, size, MADV_HUGEPAGE);
  int populated = 0;
  do {
    populated = ::madvise(base, size, MADV_POPULATE_WRITE);
  } while (populated != 0 && (errno == EINTR || errno == EAGAIN));
  if (populated != 0 && errno == EINVAL) {
    // Kernels before 5.14: reserve the pages so that touching them cannot fail, then let a remap fault them in.
    populated = ::posix_fallocate(mapping.fd_.get(), 0, static_cast<off_t>(size));
    errno = populated;
    if (populated == 0) {
      const int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
      if (::mmap(base, size, PROT_READ | PROT_WRITE, flags, mapping.fd_.get(), 0) == MAP_FAILED) populated = -1;
    }
  }
  if (populated != 0) {
    return Status(StatusCode::kResource, "cannot make " + std::to_string(size) + " bytes resident: " + errno_text());
  }
  *out = std::move(mapping);
  return Status::ok();
}

Status SharedMapping::create(std::size_t size, SharedMapping* out) {
  if (size == 0 || size > (std::size_t{1} << 47)) {
    return Status(StatusCode::kInvalidArgument, "a region needs 1 byte to 128 TiB, not " + std::to_string(size));
  }
  // Asked for up front: shared memory is granted lazily, and running out later would kill a process instead of failing.
  const std::size_t available = available_memory();
  if (available != 0 && size > available) {
    return Status(StatusCode::kResource, "a region of " + std::to_string(size) + " bytes does not fit: " +
                                             std::to_string(available) + " bytes of memory are available");
  }
  UniqueFd fd(::memfd_create("kv-transceiver", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) return Status(StatusCode::kResource, "memfd_create failed: " + errno_text());
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return Status(StatusCode::kResource, "cannot size shared memory to " + std::to_string(size) + ": " + errno_text());
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status(StatusCode::kInternal, "cannot seal shared memory: " + errno_text());
  }
  return map(std::move(fd), size, out);
}

Status SharedMapping::adopt(UniqueFd fd, std::size_t size, SharedMapping* out) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size < 0 || static_cast<std::size_t>(info.st_size) < size) {
    return Status(StatusCode::kTransport, "the peer handed over less memory than its metadata says");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::kTransport, "the peer handed over memory that is not sealed against shrinking");
  }
  return map(std::move(fd), size, out);
}

}  // namespace kvt
