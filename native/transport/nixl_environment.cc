#include "transport/nixl_environment.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace kvt::nixl {
namespace {

namespace fs = std::filesystem;

// Signals that V8 and Node need for themselves, in the spellings that UCX accepts.
bool names_a_signal_of_v8(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); });
  return value.find("SEGV") != std::string::npos || value.find("BUS") != std::string::npos ||
         value.find("11") != std::string::npos || value.find('7') != std::string::npos;
}

std::string runtime_soname(CudaMajor major) { return "libcudart.so." + std::to_string(static_cast<int>(major)); }

std::vector<fs::path> runtime_folders(CudaMajor major, const std::string& nixl_path) {
  const std::string number = std::to_string(static_cast<int>(major));
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(name);
    if (root != nullptr && *root == '/') folders.push_back(fs::path(root) / "lib64");
  }
  folders.emplace_back("/usr/local/cuda/lib64");
  folders.emplace_back("/usr/local/cuda-" + number + "/lib64");
  // The wheels install beside each other, so NIXL's own site comes first among the Python sites.
  std::vector<std::string> sites = python_site_folders();
  if (nixl_path.starts_with('/')) sites.insert(sites.begin(), fs::path(nixl_path).parent_path().parent_path().string());
  for (const std::string& site : sites) {
    folders.push_back(fs::path(site) / "nvidia" / ("cu" + number) / "lib");
    folders.push_back(fs::path(site) / "nvidia" / "cuda_runtime" / "lib");
  }
  return folders;
}

}  // namespace

void prepare_ucx_environment(std::vector<std::string>* notes) {
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  const char* signals = std::getenv("UCX_ERROR_SIGNALS");
  if (signals != nullptr && names_a_signal_of_v8(signals)) {
    notes->push_back("UCX_ERROR_SIGNALS=" + std::string(signals) +
                     " was cleared: UCX would take over signals that the JavaScript engine needs");
    ::setenv("UCX_ERROR_SIGNALS", "", 1);
  } else {
    ::setenv("UCX_ERROR_SIGNALS", "", 0);
  }
  const char* events = std::getenv("UCX_MEM_EVENTS");
  if (events != nullptr && std::strcmp(events, "n") != 0) {
    notes->push_back("UCX_MEM_EVENTS=" + std::string(events) +
                     " was set to n: UCX's test of its memory hooks moves the heap's end under threads that allocate");
  }
  ::setenv("UCX_MEM_EVENTS", "n", 1);
  if (std::getenv("NIXL_UCX_DEEPBIND") != nullptr) {
    notes->push_back("NIXL_UCX_DEEPBIND was removed: with it UCX crashes inside node");
    ::unsetenv("NIXL_UCX_DEEPBIND");
  }
}

CudaDriver find_cuda_driver() {
  CudaDriver driver;
  // The device node is asked first: the driver library costs time and means nothing on a machine without a device.
  if (::access("/dev/nvidiactl", F_OK) != 0 && ::access("/dev/dxg", F_OK) != 0) return driver;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return driver;
  using DriverGetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<DriverGetVersion>(::dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return driver;
  driver.present = true;
  driver.major = version >= 13000 ? CudaMajor::k13 : CudaMajor::k12;
  return driver;
}

std::string preload_cuda_runtime(CudaMajor major, const std::string& nixl_path, std::vector<std::string>* notes) {
  const std::string soname = runtime_soname(major);
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (::dlopen(soname.c_str(), kFlags | RTLD_NOLOAD) != nullptr) return {};
  for (const fs::path& folder : runtime_folders(major, nixl_path)) {
    const fs::path path = folder / soname;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    if (::dlopen(path.c_str(), kFlags) != nullptr) {
      notes->push_back(soname + " loaded from " + path.string());
      return {};
    }
  }
  if (::dlopen(soname.c_str(), kFlags) != nullptr) {
    notes->push_back(soname + " loaded from the loader path");
    return {};
  }
  std::string why = soname + " was not found; install the CUDA " + std::to_string(static_cast<int>(major)) +
                    " toolkit or the nvidia-cuda-runtime wheel, or point CUDA_HOME at one, and start again";
  notes->push_back("NIXL cannot register device memory: " + why);
  return why;
}

}  // namespace kvt::nixl
