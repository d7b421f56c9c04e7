#include "fake_cuda_machine.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace kvt::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kDefaultMemory = std::size_t{512} << 20;

int make_file(std::size_t bytes) {
  const int file = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0) return file;
  if (file >= 0) ::close(file);
  return -1;
}

}  // namespace

FakeCudaMachine& FakeCudaMachine::get() {
  static auto* const machine = [] {
    auto* made = new FakeCudaMachine;
    // The legacy default stream is the engine's.
    made->streams_.emplace(nullptr, std::make_unique<StreamState>());
    return made;
  }();
  return *machine;
}

void FakeCudaMachine::queue(cuda::Stream stream, Work work) { streams_.at(stream)->queue.push_back(std::move(work)); }

void FakeCudaMachine::run(const FakeCudaOrders& orders) {
  const bool is_held = orders.has("hold");
  bool has_moved = true;
  while (has_moved) {
    has_moved = false;
    for (auto& [handle, stream] : streams_) {
      while (!(stream->is_forward && is_held) && !stream->queue.empty() && stream->queue.front()()) {
        stream->queue.pop_front();
        has_moved = true;
      }
    }
  }
}

bool FakeCudaMachine::is_idle(cuda::Stream stream) const { return state_of(stream).queue.empty(); }

cuda::Stream FakeCudaMachine::add_stream(bool is_forward) {
  auto state = std::make_unique<StreamState>();
  state->is_forward = is_forward;
  const auto handle = reinterpret_cast<cuda::Stream>(state.get());
  streams_.emplace(handle, std::move(state));
  return handle;
}

void FakeCudaMachine::remove_stream(cuda::Stream stream) { streams_.erase(stream); }

std::size_t FakeCudaMachine::capacity(const FakeCudaOrders& orders) {
  return static_cast<std::size_t>(orders.number("memory").value_or(kDefaultMemory));
}

std::size_t FakeCudaMachine::used() const {
  std::size_t bytes = 0;
  for (const auto& [base, memory] : memory_) bytes += memory.counts ? memory.bytes : 0;
  for (const auto& [handle, memory] : handles_) bytes += memory.counts ? memory.bytes : 0;
  return bytes;
}

cuda::Result FakeCudaMachine::allocate(std::size_t bytes, int device, const FakeCudaOrders& orders,
                                       std::uintptr_t* out) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  if (used() + rounded > capacity(orders)) return cuda::kErrorOutOfMemory;
  const int file = make_file(rounded);
  if (file < 0) return cuda::kErrorOutOfMemory;
  *out = map(file, rounded, device, 0);
  memory_[*out].file = file;
  memory_[*out].counts = true;
  return cuda::kSuccess;
}

std::uintptr_t FakeCudaMachine::map(int file, std::size_t bytes, int device, std::uintptr_t wanted) {
  void* const base = ::mmap(reinterpret_cast<void*>(wanted), bytes, PROT_READ | PROT_WRITE,
                            wanted == 0 ? MAP_SHARED : MAP_SHARED | MAP_FIXED, file, 0);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  memory_[address] = {.bytes = bytes, .device = device};
  return address;
}

bool FakeCudaMachine::free(std::uintptr_t base) {
  const auto entry = memory_.find(base);
  if (entry == memory_.end()) return false;
  ::munmap(reinterpret_cast<void*>(base), entry->second.bytes);
  if (entry->second.file >= 0) ::close(entry->second.file);
  memory_.erase(entry);
  return true;
}

const FakeCudaMachine::Memory* FakeCudaMachine::find(std::uintptr_t address, std::uintptr_t* base) const {
  auto entry = memory_.upper_bound(address);
  if (entry == memory_.begin()) return nullptr;
  --entry;
  if (address - entry->first >= entry->second.bytes) return nullptr;
  *base = entry->first;
  return &entry->second;
}

std::uint64_t FakeCudaMachine::create(std::size_t bytes, const FakeCudaOrders& orders) {
  if (used() + bytes > capacity(orders)) return 0;
  const int file = make_file(bytes);
  if (file < 0) return 0;
  handles_[++last_handle_] = {.bytes = bytes, .file = file, .counts = true};
  return last_handle_;
}

std::uint64_t FakeCudaMachine::import(int file) {
  struct stat status {};
  const int own = ::dup(file);
  if (own < 0 || ::fstat(own, &status) != 0) return 0;
  handles_[++last_handle_] = {.bytes = static_cast<std::size_t>(status.st_size), .file = own};
  return last_handle_;
}

FakeCudaMachine::Memory* FakeCudaMachine::handle(std::uint64_t handle) {
  const auto entry = handles_.find(handle);
  return entry == handles_.end() ? nullptr : &entry->second;
}

void FakeCudaMachine::release(std::uint64_t handle) {
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) return;
  ::close(entry->second.file);
  handles_.erase(entry);
}

}  // namespace kvt::test
