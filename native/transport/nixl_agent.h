#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/run.h"
#include "core/status.h"
#include "transport/nixl_library.h"
#include "transport/transport.h"

namespace kvt::nixl {

// Role: one NIXL agent with its UCX backend: the C API with C++ ownership and our Status, and no policy.
// Threading: every method on one thread. UCX runs in its single-thread mode, because NIXL is asked for no thread and no
//   lock of its own.
// Ownership: destroy() ends the agent; without it the agent is left alone for ever, which is what a transfer that may
//   still land needs.
class NixlAgent {
 public:
  NixlAgent(const Library& library, std::string name) : library_(library), name_(std::move(name)) {}
  NixlAgent(const NixlAgent&) = delete;
  NixlAgent& operator=(const NixlAgent&) = delete;

  Status open();
  // No request may be left. Deregisters nothing: the caller did.
  void destroy();
  bool is_open() const { return agent_ != nullptr; }

  Status register_region(const Region& region);
  // Fatal for the process while an own transfer that uses the region may still run.
  Status deregister_region(const Region& region);

  Status local_metadata(std::vector<std::byte>* out);
  // `name` is what the blob calls itself; it may differ from what its sender claimed.
  Status load_remote(std::span<const std::byte> blob, std::string* name);
  // Whether the connection still takes messages. Sends one that the peer throws away.
  bool is_reachable(const std::string& name);
  void invalidate_remote(const std::string& name);

  // One run with the regions it lies in.
  struct PlacedRun {
    Run run;
    const Region* source = nullptr;
    const Region* destination = nullptr;
  };
  // A write of `runs` to `remote`; sources are of one memory kind, and destinations too. Starts nothing.
  Status create_write(const std::string& remote, std::span<const PlacedRun> runs, XferReq* request);
  int post(XferReq request);
  int status(XferReq request);
  // Terminal requests only: releasing a running one neither stops it nor waits for it.
  void destroy_request(XferReq request);

  // A notification that has the peer's agent name, as the peer wrote it.
  int send_notification(const std::string& remote, std::span<const std::byte> bytes);
  struct Notification {
    std::string sender;
    std::vector<std::byte> bytes;
  };
  // Drives UCX and takes received notifications; null: throws them away, since what peers send must not pile up.
  void progress(std::vector<Notification>* received = nullptr);

 private:
  class DescriptorList;

  void take_notifications(std::size_t sender_count, std::vector<Notification>* out);
  Status register_or_deregister(const Region& region, int (*Api::*operation)(Agent, RegDlist, OptArgs),
                                const char* what);
  const Api& api() const { return library_.api(); }

  const Library& library_;
  const std::string name_;
  Agent agent_ = nullptr;
  Backend backend_ = nullptr;
  // Names the UCX backend. Without it NIXL calls a registration good when any backend took it.
  OptArgs with_backend_ = nullptr;
  NotifMap notifications_ = nullptr;
};

}  // namespace kvt::nixl
