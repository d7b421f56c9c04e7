#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/nixl_api.h"
#include "transport/nixl_options.h"

namespace kvt {

// What doctor and error texts tell about NIXL on this machine.
struct NixlProbe {
  bool available = false;
  // Why it is not available, with the remedy; empty when it is.
  std::string reason;
  std::string path;
  // "1.5.1" where the tree tells it, else the range that the exported functions prove.
  std::string version;
  // One entry for each place looked at: "path (origin): what happened".
  std::vector<std::string> tried;
  // Replaced environment values, where the CUDA runtime came from, what device memory still needs.
  std::vector<std::string> notes;
};

// Finds and loads the library as make_nixl_transport would, and creates no agent. Any thread.
NixlProbe probe_nixl(const NixlOptions& options);

// Sets what UCX must find in the process environment before the first agent; what is set right already stays.
// Idempotent. Call it on the thread that starts the agent, where JavaScript's own writes to the environment happen too:
// changing it under a reader on another thread is undefined. make_nixl_transport does it otherwise.
void prepare_process_for_nixl();

namespace nixl {

// Role: the one loaded libnixl_capi.so of this process.
// Ownership: never unloaded. UCX and NIXL leave threads, hooks and exit handlers behind that point into their code.
// Threading: immutable once made.
class Library {
 public:
  // Null when the file cannot be used; `problem` then says why (loader error, stub, the names of missing functions).
  static std::unique_ptr<Library> open(const std::string& path, std::string* problem);

  const Api& api() const { return api_; }
  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }
  // What this machine lacks for it to take device memory, with the remedy; empty when nothing is known to be missing.
  const std::string& why_no_device_memory() const { return why_no_device_memory_; }
  // Before it is shared.
  void set_why_no_device_memory(std::string why) { why_no_device_memory_ = std::move(why); }

  // Fills in the configuration layout of this library: no threads of NIXL's own, no locking (one thread makes every
  // call).
  int create_agent(const char* name, Agent* agent) const;
  // Frees what get_local_md and load_remote_md handed out.
  void free_result(void* memory) const;

 private:
  Library() = default;

  Api api_;
  std::string path_;
  std::string version_;
  std::string why_no_device_memory_;
  bool has_versioned_layout_ = false;
};

// Loads once per process; a failure is not remembered, so that a later call with other options may succeed. Any thread.
// Null when nothing usable was found. `probe` is filled either way.
const Library* load(const NixlOptions& options, NixlProbe* probe);

}  // namespace nixl
}  // namespace kvt
