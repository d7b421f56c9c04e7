#pragma once

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "transport/bounce_link.h"
#include "transport/bounce_socket_link.h"

namespace kvt {

// Role: frames by socket between agents of one machine, by the messages of the transport below to all others.
// Why: NIXL's notifications cost tens of microseconds each on one host, and hundreds when they are large (two H200: a
//   bounced page took 160 us with them); a frame over a local socket costs a few.
// Ordering: both sides come to the same answer, by comparing where they say they are: boot, network namespace, user.
class BounceNearLink final : public BounceLink {
 public:
  explicit BounceNearLink(Transport* transport) : messages_(transport) {}

  Status open() override;
  std::vector<std::byte> address() const override;
  Status add_peer(PeerId peer, std::span<const std::byte> address) override;
  void remove_peer(PeerId peer) override;
  bool has_ended(PeerId peer) const override { return sockets_.has_ended(peer); }
  bool stands_alone(PeerId peer) const override { return near_.contains(peer); }
  bool send(PeerId peer, std::span<const std::byte> frame) override;
  void progress(std::vector<Transport::Message>* frames, std::vector<PeerId>* lost) override;
  int wait_fd() const override { return sockets_.wait_fd(); }
  bool is_announced() const override { return far_.empty(); }
  std::optional<TimePoint> next_wakeup(TimePoint now) const override { return sockets_.next_wakeup(now); }

  // Boot id 16 | inode of the network namespace 8 | effective user 8, before the socket's own address.
  static constexpr std::size_t kPlaceBytes = 32;

 private:
  BounceSocketLink sockets_;
  BounceMessageLink messages_;
  std::vector<std::byte> place_;  // empty: it cannot be told
  std::unordered_set<PeerId> near_;
  std::unordered_set<PeerId> far_;
};

}  // namespace kvt
