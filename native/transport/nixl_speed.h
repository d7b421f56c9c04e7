#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace kvt::nixl {

// Role: notices when UCX moves memory to a peer far slower than its kind of memory moves, which is how a detour shows
//   that UCX takes without a word (TCP, or a copy through host memory). Told once for each peer and kind.
// Why: neither NIXL nor UCX can be asked what was chosen.
// Threading: the progress thread.
class SpeedWatch {
 public:
  // How fast this machine copies host memory itself, in bytes a microsecond: what shared memory is measured against.
  void set_copy_rate(double bytes_per_us) { copy_rate_ = bytes_per_us; }

  // Below this many bytes a microsecond a path is told of.
  double slow_below(MemoryKind kind) const;

  void add_peer(PeerId peer, const std::string& called) { peers_[peer].called = called; }
  void name_peer(PeerId peer, const std::string& called);
  void remove_peer(PeerId peer) { peers_.erase(peer); }

  // A probe found `bytes_per_us` with writes of `bytes` each, with nothing else under way.
  void probed(PeerId peer, MemoryKind kind, double bytes_per_us, std::size_t bytes);

  // Batches under way. Several may be; together they say how fast the path is.
  void began(PeerId peer, MemoryKind kind, TimePoint now);
  // `bytes` 0: it failed, and tells nothing.
  void ended(PeerId peer, MemoryKind kind, std::size_t bytes, std::size_t runs, TimePoint now);

  void tell(std::string advice) { advice_.push_back(std::move(advice)); }
  // What the probe of a peer found, in words; empty when there was none.
  std::string measured(PeerId peer, MemoryKind kind) const;
  void take_advice(std::vector<std::string>* out);

 private:
  struct Lane {
    std::size_t in_flight = 0;
    TimePoint busy_since;
    // Of the window that is being measured.
    std::chrono::nanoseconds busy{0};
    std::size_t bytes = 0;
    std::size_t runs = 0;
    // Of the windows before it.
    int windows = 0;
    double best = 0;
    double probed = 0;
    bool is_told = false;

    void clear_window() {
      busy = std::chrono::nanoseconds(0);
      bytes = 0;
      runs = 0;
    }
  };
  struct Peer {
    std::string called;
    std::array<Lane, 2> lanes;  // by MemoryKind
  };

  void judge(const Peer& peer, MemoryKind kind, Lane* lane, double bytes_per_us, const std::string& measured_by);

  double copy_rate_ = 0;
  std::unordered_map<PeerId, Peer> peers_;
  std::vector<std::string> advice_;
};

}  // namespace kvt::nixl
