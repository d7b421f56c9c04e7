#include "transport/nixl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "transport/nixl_environment.h"
#include "transport/nixl_search.h"

namespace kvt {
namespace nixl {
namespace {

namespace fs = std::filesystem;

template <typename Function>
bool resolve(void* handle, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(::dlsym(handle, name));
  return *out != nullptr;
}

std::vector<std::string> missing_functions(void* handle) {
  std::vector<std::string> missing;
  const auto check = [&](const char* name) {
    if (::dlsym(handle, name) == nullptr) missing.emplace_back(name);
  };
#define KVT_NIXL_CALL(result, name, parameters)
#define KVT_NIXL_REQUIRED(name) check("nixl_capi_" #name);
#include "transport/nixl_api.def"
  return missing;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// The file the loader really took, for paths left to its own search.
std::string path_of(void* function, const std::string& asked) {
  Dl_info info{};
  if (::dladdr(function, &info) == 0 || info.dli_fname == nullptr) return asked;
  return info.dli_fname;
}

// A wheel's tree names its version in the folder <wheel>-<version>.dist-info; the C API up to 1.5 tells none.
std::string version_of(const std::string& path, void* handle) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string hidden = folder.filename().string();
  const std::size_t end = hidden.find(".mesonpy.libs");
  if (hidden.starts_with('.') && end != std::string::npos) {
    const std::string prefix = hidden.substr(1, end - 1) + "-";
    std::error_code error;
    for (fs::directory_iterator it(folder.parent_path(), error), last; !error && it != last; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (!name.starts_with(prefix) || !name.ends_with(".dist-info")) continue;
      return name.substr(prefix.size(), name.size() - prefix.size() - std::string(".dist-info").size());
    }
  }
  if (::dlsym(handle, "nixl_capi_get_version") != nullptr) return "later than 1.5";
  return ::dlsym(handle, "nixl_capi_prep_mem_view_local") != nullptr ? "1.5" : "1.0 to 1.4";
}

std::string nothing_usable(const std::vector<std::string>& tried) {
  std::string text = "no usable NIXL was found: ";
  for (const std::string& attempt : tried) text += attempt + "; ";
  return text + "run `npm run nixl`, install nixl-cu13 or nixl-cu12, or set KV_TRANSCEIVER_NIXL_LIB to libnixl_capi.so";
}

CudaMajor major_of(const std::string& path, CudaMajor fallback) {
  if (path.find("nixl_cu12") != std::string::npos) return CudaMajor::k12;
  if (path.find("nixl_cu13") != std::string::npos) return CudaMajor::k13;
  return fallback;
}

// What the first successful load found. Never freed, like the library it stands for.
struct Loaded {
  std::unique_ptr<Library> library;
  std::vector<std::string> tried;
  std::vector<std::string> notes;
};

std::mutex load_mutex;
const Loaded* loaded = nullptr;                     // guarded by load_mutex
std::vector<std::string>* prepare_notes = nullptr;  // guarded by load_mutex, never freed

// Under load_mutex.
const std::vector<std::string>& prepare_once() {
  if (prepare_notes == nullptr) {
    prepare_notes = new std::vector<std::string>();
    prepare_ucx_environment(prepare_notes);
  }
  return *prepare_notes;
}

// Null when no candidate is usable; `attempt` then holds what was tried.
bool search(const NixlOptions& options, Loaded* attempt) {
  attempt->notes = prepare_once();
  const CudaDriver driver = find_cuda_driver();
  for (const Candidate& candidate : library_candidates(options, driver.major)) {
    std::string problem;
    attempt->library = Library::open(candidate.path, &problem);
    const bool is_usable = attempt->library != nullptr;
    attempt->tried.push_back(candidate.path + " (" + candidate.origin + "): " + (is_usable ? "loaded" : problem));
    if (!is_usable) continue;
    const std::string& path = attempt->library->path();
    if (driver.present) {
      attempt->library->set_why_no_device_memory(
          preload_cuda_runtime(major_of(path, driver.major), path, &attempt->notes));
    }
    return true;
  }
  return false;
}

// A process has one NIXL: two copies of UCX would both hook its memory calls. Says so where another one was asked for.
void note_ignored_choice(const NixlOptions& options, const std::string& path, std::vector<std::string>* notes) {
  const std::vector<Candidate> candidates = library_candidates(options, CudaMajor::k13);
  std::error_code error;
  if (candidates.size() != 1 || std::filesystem::equivalent(candidates.front().path, path, error)) return;
  notes->push_back("NIXL was loaded earlier from " + path + "; " + candidates.front().path +
                   " takes effect in a new process");
}

}  // namespace

std::unique_ptr<Library> Library::open(const std::string& path, std::string* problem) {
  // NODELETE: see the class. LOCAL: NIXL's gRPC, protobuf and abseil must not serve as anybody else's. Never DEEPBIND:
  // the node binary owns `environ` by copy relocation, and UCX would walk another one.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* error = ::dlerror();
    *problem = error == nullptr ? "cannot be loaded" : error;
    return nullptr;
  }
  bool (*is_stub)() = nullptr;
  if (resolve(handle, "nixl_capi_is_stub", &is_stub) && is_stub()) {
    *problem = "is the stub of the Rust bindings, not NIXL";
    return nullptr;
  }
  const std::vector<std::string> missing = missing_functions(handle);
  if (!missing.empty()) {
    *problem = "is not a NIXL of 1.0 or later, it lacks " + join(missing);
    return nullptr;
  }
  std::unique_ptr<Library> library(new Library());
  bool is_complete = true;
#define KVT_NIXL_CALL(result, name, parameters) \
  is_complete = resolve(handle, "nixl_capi_" #name, &library->api_.name) && is_complete;
#define KVT_NIXL_REQUIRED(name)
#include "transport/nixl_api.def"
  if (!is_complete) {
    *problem = "lacks functions that every NIXL exports";
    return nullptr;
  }
  resolve(handle, "nixl_capi_mem_free", &library->api_.mem_free);
  library->has_versioned_layout_ = ::dlsym(handle, "nixl_capi_get_version") != nullptr;
  library->path_ = path_of(reinterpret_cast<void*>(is_stub), path);
  library->version_ = version_of(library->path_, handle);
  return library;
}

int Library::create_agent(const char* name, Agent* agent) const {
  if (has_versioned_layout_) {
    const VersionedAgentConfig config;
    return api_.create_configured_agent(name, &config, agent);
  }
  const AgentConfig config;
  return api_.create_configured_agent(name, &config, agent);
}

void Library::free_result(void* memory) const {
  if (api_.mem_free != nullptr) {
    api_.mem_free(memory);
  } else {
    std::free(memory);
  }
}

const Library* load(const NixlOptions& options, NixlProbe* probe) {
  const std::lock_guard<std::mutex> lock(load_mutex);
  if (loaded == nullptr) {
    auto attempt = std::make_unique<Loaded>();
    if (!search(options, attempt.get())) {
      probe->reason = nothing_usable(attempt->tried);
      probe->tried = attempt->tried;
      probe->notes = attempt->notes;
      return nullptr;
    }
    loaded = attempt.release();
  }
  probe->available = true;
  probe->path = loaded->library->path();
  probe->version = loaded->library->version();
  probe->tried = loaded->tried;
  probe->notes = loaded->notes;
  note_ignored_choice(options, probe->path, &probe->notes);
  return loaded->library.get();
}

}  // namespace nixl

void prepare_process_for_nixl() {
  const std::lock_guard<std::mutex> lock(nixl::load_mutex);
  (void)nixl::prepare_once();
}

NixlProbe probe_nixl(const NixlOptions& options) {
  NixlProbe probe;
  nixl::load(options, &probe);
  return probe;
}

}  // namespace kvt
