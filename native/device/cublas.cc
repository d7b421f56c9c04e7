#include "device/cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace kvt {
namespace {

constexpr int kAllocationFailed = 3;

// Folders of installed packages are searched through the Python that is first on the PATH, as NIXL's are.
std::vector<std::string> site_patterns() {
  std::vector<std::string> roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* root = std::getenv(name); root != nullptr && *root != '\0') roots.emplace_back(root);
  }
  const char* path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  for (std::size_t at = 0; at < folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    const std::string folder = folders.substr(at, end - at);
    at = end + 1;
    // A virtual environment's python3 is a link out of it: its own place counts, not what it points to.
    if (::access((folder + "/python3").c_str(), X_OK) != 0) continue;
    roots.push_back(folder + "/..");
    break;
  }
  std::vector<std::string> patterns;
  for (const std::string& root : roots) {
    for (const char* packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages"}) {
      for (const char* folder : {"/nvidia/cu13/lib", "/nvidia/cublas/lib", "/nvidia/cu12/lib"}) {
        patterns.push_back(root + packages + folder);
      }
    }
  }
  patterns.emplace_back("/usr/local/cuda/lib64");
  patterns.emplace_back("/usr/local/cuda-*/lib64");
  return patterns;
}

std::vector<std::string> candidates(const std::string& wanted) {
  if (!wanted.empty()) return {wanted};
  if (const char* named = std::getenv("KV_TRANSCEIVER_CUBLAS_LIB"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> out;
  for (const std::string& pattern : site_patterns()) {
    for (const char* file : {"/libcublas.so.13", "/libcublas.so.12"}) {
      glob_t found{};
      if (::glob((pattern + file).c_str(), 0, nullptr, &found) == 0) {
        for (std::size_t i = 0; i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
      }
      ::globfree(&found);
    }
  }
  out.emplace_back("libcublas.so.13");
  out.emplace_back("libcublas.so.12");
  return out;
}

template <typename Function>
bool find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(::dlsym(library, name));
  return *out != nullptr;
}

bool bind(void* library, Cublas* out) {
  return find(library, "cublasCreate_v2", &out->create) && find(library, "cublasDestroy_v2", &out->destroy) &&
         find(library, "cublasSetStream_v2", &out->set_stream) &&
         find(library, "cublasGetVersion_v2", &out->get_version) && find(library, "cublasGemmEx", &out->gemm) &&
         find(library, "cublasGemmStridedBatchedEx", &out->gemm_batched);
}

std::string why_not() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown reason" : text;
}

}  // namespace

Status Cublas::check(int result, const char* call) {
  if (result == 0) return Status::ok();
  return Status(result == kAllocationFailed ? StatusCode::kResource : StatusCode::kTransport,
                std::string(call) + " failed with cuBLAS status " + std::to_string(result));
}

Status load_cublas(const std::string& path, const Cublas** out) {
  static std::mutex mutex;
  // Leaked on purpose: worker threads may outlive static destruction.
  static const Cublas* loaded = nullptr;
  const std::lock_guard lock(mutex);
  std::string tried;
  for (const std::string& candidate : loaded == nullptr ? candidates(path) : std::vector<std::string>()) {
    void* library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    Cublas found;
    found.library = candidate;
    if (library != nullptr && bind(library, &found)) {
      loaded = new Cublas(std::move(found));
      break;
    }
    tried += (tried.empty() ? "" : "; ") + candidate + ": " + (library == nullptr ? why_not() : "lacks symbols");
  }
  if (loaded == nullptr) {
    return Status(StatusCode::kCapability,
                  "cuBLAS cannot be opened (" + tried +
                      "); install the CUDA toolkit or the nvidia-cublas wheel, or set KV_TRANSCEIVER_CUBLAS_LIB");
  }
  *out = loaded;
  return Status::ok();
}

}  // namespace kvt
