#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/unique_fd.h"
#include "transport/bounce_link.h"
#include "transport/host_handover.h"

namespace kvt {

// Role: frames between agents of one machine, over abstract SOCK_SEQPACKET sockets: one connection each way, opened by
//   whoever sends on it.
// Why two: each side opens its own when it adds the other, in whatever order that happens, and a frame is taken only
//   from a connection that proved to be of a peer that was added: it names the peer's own token, which only the peer's
//   metadata holds.
// Ownership: owns its sockets. Their end tells each side that the other is gone.
//
//   HELLO  client -> server   magic 4 | name length 4 | server's token 16 | client's token 16 | client's name 64
//   then frames, client -> server
class BounceSocketLink final : public BounceLink {
 public:
  BounceSocketLink() = default;

  Status open() override;
  std::vector<std::byte> address() const override;
  Status add_peer(PeerId peer, std::span<const std::byte> address) override;
  void remove_peer(PeerId peer) override;
  bool has_ended(PeerId peer) const override;
  bool send(PeerId peer, std::span<const std::byte> frame) override;
  void progress(std::vector<Transport::Message>* frames, std::vector<PeerId>* lost) override;
  int wait_fd() const override { return epoll_.get(); }
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;

  static constexpr std::size_t kMaxNameBytes = 64;
  // Frames kept for a peer that does not read.
  static constexpr std::size_t kMaxQueued = 4096;

 private:
  struct Hello {
    std::uint32_t magic = kMagic;
    std::uint32_t name_bytes = 0;
    HostToken server{};
    HostToken client{};
    std::array<char, kMaxNameBytes> name{};
    static constexpr std::uint32_t kMagic = 0x4c54564b;  // "KVTL"
  };
  // kEnded: by the peer itself.
  enum class State : std::uint8_t { kConnecting, kOpen, kLost, kEnded };
  struct Peer {
    std::string name;
    HostToken token{};
    UniqueFd socket;  // to the peer
    State state = State::kConnecting;
    bool is_lost() const { return state == State::kLost || state == State::kEnded; }
    std::deque<std::vector<std::byte>> queued;
    bool awaits_room = false;   // the socket was full, and says when it is not
    std::uint64_t inbound = 0;  // the connection from the peer; 0: not there yet
  };
  // A connection that somebody opened to us.
  struct Inbound {
    UniqueFd socket;
    bool has_greeted = false;
    std::string name;
    HostToken token{};
    PeerId peer = 0;
    bool is_known = false;
  };

  void accept_all();
  void connect(PeerId id, Peer* peer);
  void flush(PeerId id, Peer* peer);
  void lose(PeerId id, Peer* peer, State how);
  // kOpen: keep the connection; else how it is over.
  State receive(std::uint64_t id, Inbound* inbound, std::vector<Transport::Message>* frames);
  void identify(std::uint64_t id, Inbound* inbound);
  void watch(int operation, int socket, std::uint32_t events, std::uint64_t id) const;

  UniqueFd epoll_;
  UniqueFd listener_;
  std::string name_;
  HostToken token_{};
  std::unordered_map<PeerId, Peer> peers_;
  std::map<std::uint64_t, Inbound> inbound_;
  std::vector<PeerId> lost_;
  std::uint64_t last_inbound_ = 0;
};

}  // namespace kvt
