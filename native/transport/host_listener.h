#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/host_handover.h"
#include "transport/host_metadata.h"
#include "transport/transport.h"

namespace kvt {

// Role: hands this agent's shared memory to peers that were given its metadata: same user, right token.
// Threading: the progress thread; no call blocks, so two agents that add each other never wait for one another.
// Ownership: borrows `descriptors`, one for each region, which only ever grow in number, and the epoll descriptor; both
// outlive it.
class HostListener {
 public:
  HostListener(int epoll, const std::vector<int>* descriptors) : epoll_(epoll), descriptors_(descriptors) {}

  Status open();
  const std::string& socket_name() const { return name_; }
  const HostToken& token() const { return token_; }

  // Events carry kListenerEvent or the id of a connection; ids stay below kFirstForeignEvent.
  void on_event(std::uint64_t event);
  // Drops clients that connected and then said nothing, and ends a pause in accepting.
  void drop_expired(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

  static constexpr std::uint64_t kListenerEvent = 0;
  static constexpr std::uint64_t kFirstForeignEvent = std::uint64_t{1} << 63;

 private:
  enum class ClientState : std::uint8_t { kAwaitsHello, kTakesGrants, kServed };
  struct Client {
    UniqueFd socket;
    ClientState state = ClientState::kAwaitsHello;
    TimePoint deadline;
    std::size_t next_region = 0;
    std::size_t region_count = 0;
  };

  void accept_all();
  void pause_accepting();
  // False: drop the client.
  bool advance(std::uint64_t id, Client* client);
  bool send_grants(std::uint64_t id, Client* client);

  int epoll_;
  const std::vector<int>* descriptors_;
  UniqueFd socket_;
  std::string name_;
  HostToken token_{};
  std::map<std::uint64_t, Client> clients_;
  std::size_t unserved_ = 0;
  std::optional<TimePoint> accepts_again_at_;
  std::uint64_t last_id_ = kListenerEvent;
};

}  // namespace kvt
