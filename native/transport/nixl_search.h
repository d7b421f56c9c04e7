#pragma once

#include <string>
#include <vector>

#include "transport/nixl_options.h"

namespace kvt::nixl {

// One place where libnixl_capi.so may be.
struct Candidate {
  // Absolute, or a bare name that is left to the loader's own path.
  std::string path;
  // Where the path came from, for people: "KV_TRANSCEIVER_NIXL_LIB", "package", "python /usr/lib/...", "prefix",
  // "loader path".
  std::string origin;
};

// The CUDA generation whose wheel is tried first.
enum class CudaMajor : int { k12 = 12, k13 = 13 };

// In the order to try. A path that the user gave (environment or configuration) is the only candidate: an explicit
// choice that fails must not be replaced silently. Of the searched places only existing files are listed.
std::vector<Candidate> library_candidates(const NixlOptions& options, CudaMajor preferred);

// The site-packages folders of the active Python, found without running it: VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, the
// python3 on PATH (pyenv's shims resolved), the user's own site.
std::vector<std::string> python_site_folders();

}  // namespace kvt::nixl
