#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fake_cuda.h"

namespace kvt::test {
namespace {

// Whoever opens libcuda.so.1 by its name gets what is loaded under that name already.
void* load() {
  const auto orders = std::filesystem::temp_directory_path() / ("kvt-fake-cuda-" + std::to_string(::getpid()));
  ::setenv("KVT_FAKE_CUDA", orders.c_str(), 1);
  std::atexit([] { (void)::unlink(std::getenv("KVT_FAKE_CUDA")); });
  void* const library = ::dlopen(KVT_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  return library;
}

void* const library = load();

}  // namespace

void FakeCuda::order(std::initializer_list<std::string> orders) {
  // Moved into its place, so that no call reads half of it.
  const std::string path = std::getenv("KVT_FAKE_CUDA");
  {
    std::ofstream file(path + ".new");
    for (const std::string& one : orders) file << one << '\n';
  }
  std::filesystem::rename(path + ".new", path);
}

std::uint64_t FakeCuda::calls(const char* name) {
  using Calls = std::uint64_t(const char*);
  return reinterpret_cast<Calls*>(::dlsym(library, "kvt_fake_cuda_calls"))(name);
}

}  // namespace kvt::test
