#pragma once

#include <chrono>
#include <string>

namespace kvt {

struct NixlOptions {
  // Unique per incarnation: NIXL refuses a restarted peer under a name it knows.
  std::string agent_name;
  // libnixl_capi.so from the configuration; empty = search. KV_TRANSCEIVER_NIXL_LIB comes first.
  std::string library_path;
  // The package's own `.nixl` folder, filled by `npm run nixl`; empty = none.
  std::string package_tree;
  // How long memory stays in quarantine after the connection to its peer was torn down. UCX gives no signal for the end
  // of that.
  std::chrono::milliseconds peer_grace{2000};
  // Whether peers are probed with timed writes before they are ready, and slow paths told of.
  bool probes = false;
};

}  // namespace kvt
