#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/host_handover.h"
#include "transport/transport.h"

namespace kvt {

// Role: fetches the descriptors of a peer's memory over its socket, and from then on tells when the peer is gone.
// Threading: the progress thread; no call blocks.
// Ownership: owns the connection, and the descriptors until they are taken.
class HandoverClient {
 public:
  // Registers its socket with `epoll` under `event`. `wanted` descriptors are asked for; `description` names the peer
  // in messages.
  HandoverClient(std::string description, std::string socket_name, const HostToken& token, std::size_t wanted,
                 int epoll, std::uint64_t event, TimePoint deadline);

  // Drives the hand-over, and notices the end of the connection.
  void advance(TimePoint now);
  PeerState state() const { return state_; }
  // Why it failed; ok while it has not.
  const Status& error() const { return error_; }
  // As the kernel says; 0 before there is a connection.
  pid_t pid() const { return pid_; }
  // When to call advance although no event came.
  std::optional<TimePoint> next_wakeup(TimePoint now) const;

  // All of them, in the peer's order, once it is ready.
  std::vector<UniqueFd> take_descriptors() { return std::move(descriptors_); }
  // A ready peer whose process ended or whose agent closed fails with kPeerLost from here on.
  bool check_alive();
  // The caller is done with the peer: it fails from here on, and its end is not looked for.
  void close() { fail(StatusCode::kState, "it was removed"); }
  // The caller found what came unusable.
  void fail(StatusCode code, const std::string& what);

 private:
  void connect();
  void receive();

  std::string description_;
  std::string socket_name_;
  HostToken token_;
  std::size_t wanted_;
  int epoll_;
  std::uint64_t event_;
  TimePoint deadline_;
  PeerState state_ = PeerState::kConnecting;
  Status error_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  std::vector<UniqueFd> descriptors_;
};

}  // namespace kvt
