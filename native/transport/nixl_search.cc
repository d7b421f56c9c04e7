#include "transport/nixl_search.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace kvt::nixl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibraryFile = "libnixl_capi.so";

#if defined(__aarch64__)
constexpr std::string_view kMultiarch = "aarch64-linux-gnu";
#else
constexpr std::string_view kMultiarch = "x86_64-linux-gnu";
#endif

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string{} : std::string{value};
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Subfolders whose name starts with `prefix`, newest version first: by length, then by name ("python3.11" before
// "python3.9").
std::vector<fs::path> subfolders(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix) && is_folder(it->path())) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename().string();
    const std::string right = b.filename().string();
    return left.size() != right.size() ? left.size() > right.size() : left > right;
  });
  return found;
}

void add_unique(std::vector<std::string>* list, const fs::path& path) {
  const std::string text = path.lexically_normal().string();
  if (std::find(list->begin(), list->end(), text) == list->end()) list->push_back(text);
}

void add_sites_of_prefix(std::vector<std::string>* sites, const fs::path& prefix) {
  for (const char* lib : {"lib", "lib64"}) {
    for (const fs::path& version : subfolders(prefix / lib, "python3")) {
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (is_folder(version / name)) add_unique(sites, version / name);
      }
    }
  }
}

// A pyenv shim is a script, so that its own prefix says nothing. The version it would choose: PYENV_VERSION, else the
// global one.
fs::path pyenv_prefix(const fs::path& root) {
  std::string version = environment("PYENV_VERSION");
  if (version.empty()) {
    std::ifstream file(root / "version");
    std::getline(file, version);
  }
  const std::vector<std::string> names = split(version, ':');
  return names.empty() ? fs::path{} : root / "versions" / names.front();
}

void add_sites_of_path_python(std::vector<std::string>* sites) {
  for (const std::string& folder : split(environment("PATH"), ':')) {
    const fs::path python = fs::path(folder) / "python3";
    if (!is_file(python)) continue;
    if (fs::path(folder).filename() == "shims") {
      add_sites_of_prefix(sites, pyenv_prefix(fs::path(folder).parent_path()));
    } else {
      add_sites_of_prefix(sites, fs::path(folder).parent_path());
      std::error_code error;
      const fs::path real = fs::canonical(python, error);
      if (!error) add_sites_of_prefix(sites, real.parent_path().parent_path());
      // Debian keeps distribution packages outside the prefix of the interpreter's version.
      if (folder == "/usr/bin" && is_folder("/usr/lib/python3/dist-packages")) {
        add_unique(sites, "/usr/lib/python3/dist-packages");
      }
    }
    return;
  }
}

// Wheel trees keep the library in a hidden folder named after the wheel.
void add_wheel_libraries(std::vector<Candidate>* candidates, const fs::path& folder, CudaMajor preferred,
                         const std::string& origin) {
  const std::array<std::string_view, 2> order = preferred == CudaMajor::k13
                                                    ? std::array<std::string_view, 2>{"nixl_cu13", "nixl_cu12"}
                                                    : std::array<std::string_view, 2>{"nixl_cu12", "nixl_cu13"};
  for (const std::string_view wheel : order) {
    const fs::path path = folder / ("." + std::string(wheel) + ".mesonpy.libs") / kLibraryFile;
    if (is_file(path)) candidates->push_back({path.string(), origin});
  }
}

void add_prefix_libraries(std::vector<Candidate>* candidates) {
  for (const char* prefix : {"/opt/nvidia/nvda_nixl", "/usr/local/nixl", "/usr/local", "/usr"}) {
    for (const fs::path& lib : {fs::path("lib") / kMultiarch, fs::path("lib64"), fs::path("lib")}) {
      const fs::path path = fs::path(prefix) / lib / kLibraryFile;
      if (is_file(path)) candidates->push_back({path.string(), "prefix"});
    }
  }
}

Candidate explicit_candidate(const std::string& given, const std::string& origin) {
  std::error_code error;
  fs::path path = fs::absolute(given, error);
  if (error) path = given;
  if (is_folder(path)) path /= kLibraryFile;
  return {path.lexically_normal().string(), origin};
}

}  // namespace

std::vector<std::string> python_site_folders() {
  std::vector<std::string> sites;
  for (const std::string& folder : split(environment("PYTHONPATH"), ':')) {
    if (fs::path(folder).is_absolute() && is_folder(folder)) add_unique(&sites, folder);
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = environment(name);
    if (!prefix.empty()) add_sites_of_prefix(&sites, prefix);
  }
  add_sites_of_path_python(&sites);
  const std::string home = environment("HOME");
  if (!home.empty()) add_sites_of_prefix(&sites, fs::path(home) / ".local");
  return sites;
}

std::vector<Candidate> library_candidates(const NixlOptions& options, CudaMajor preferred) {
  const std::string from_environment = environment("KV_TRANSCEIVER_NIXL_LIB");
  if (!from_environment.empty()) return {explicit_candidate(from_environment, "KV_TRANSCEIVER_NIXL_LIB")};
  if (!options.library_path.empty()) return {explicit_candidate(options.library_path, "configuration")};

  std::vector<Candidate> candidates;
  if (!options.package_tree.empty()) {
    add_wheel_libraries(&candidates, options.package_tree, preferred, "package");
    for (const fs::path& tree : subfolders(options.package_tree, "nixl-cu")) {
      add_wheel_libraries(&candidates, tree, preferred, "package");
    }
  }
  for (const std::string& site : python_site_folders()) {
    add_wheel_libraries(&candidates, site, preferred, "python " + site);
  }
  add_prefix_libraries(&candidates);
  candidates.push_back({std::string(kLibraryFile), "loader path"});
  candidates.push_back({std::string(kLibraryFile) + ".0", "loader path"});
  return candidates;
}

}  // namespace kvt::nixl
