#include "transport/bounce_socket_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/bounce_frame.h"

namespace kvt {
namespace {

constexpr std::uint64_t kListenerEvent = 0;
constexpr std::uint64_t kOutbound = std::uint64_t{1} << 63;
constexpr auto kRetryInterval = std::chrono::milliseconds(2);
// Connections that have not said who they are, or are of nobody that was added.
constexpr std::size_t kMaxUnknown = 256;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS; }

// In constant time: a token is a secret.
bool is_same(const HostToken& one, const HostToken& other) {
  std::byte difference{};
  for (std::size_t i = 0; i < one.size(); ++i) difference |= one[i] ^ other[i];
  return difference == std::byte{};
}

}  // namespace

void BounceSocketLink::watch(int operation, int socket, std::uint32_t events, std::uint64_t id) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll_.get(), operation, socket, &event);
}

Status BounceSocketLink::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  Status status = random_bytes(token_);
  if (status.is_ok()) status = listen_abstract(&listener_, &name_);
  if (status.is_ok()) watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent);
  return status;
}

std::vector<std::byte> BounceSocketLink::address() const {
  std::vector<std::byte> out(token_.begin(), token_.end());
  for (const char c : name_) out.push_back(static_cast<std::byte>(c));
  return out;
}

Status BounceSocketLink::add_peer(PeerId id, std::span<const std::byte> address) {
  Peer peer;
  if (address.size() <= peer.token.size() || address.size() - peer.token.size() > kMaxNameBytes) {
    return Status(StatusCode::kTransport, "the peer's bounce address has " + std::to_string(address.size()) + " bytes");
  }
  std::copy_n(address.begin(), peer.token.size(), peer.token.begin());
  for (const std::byte b : address.subspan(peer.token.size())) peer.name.push_back(static_cast<char>(b));
  const auto [entry, is_new] = peers_.emplace(id, std::move(peer));
  if (!is_new) return Status(StatusCode::kInternal, "peer id " + std::to_string(id) + " is in use");
  connect(id, &entry->second);
  for (auto& [inbound_id, inbound] : inbound_) {
    if (inbound.has_greeted && !inbound.is_known) identify(inbound_id, &inbound);
  }
  return Status::ok();
}

void BounceSocketLink::remove_peer(PeerId id) {
  const auto entry = peers_.find(id);
  if (entry == peers_.end()) return;
  if (entry->second.inbound != 0) inbound_.erase(entry->second.inbound);
  peers_.erase(entry);
}

bool BounceSocketLink::has_ended(PeerId id) const {
  const auto entry = peers_.find(id);
  return entry != peers_.end() && entry->second.state == State::kEnded;
}

void BounceSocketLink::lose(PeerId id, Peer* peer, State how) {
  if (peer->is_lost()) return;
  peer->state = how;
  peer->socket.reset();
  peer->queued.clear();
  if (peer->inbound != 0) inbound_.erase(peer->inbound);
  peer->inbound = 0;
  lost_.push_back(id);
}

void BounceSocketLink::connect(PeerId id, Peer* peer) {
  switch (connect_abstract(peer->name, &peer->socket)) {
    case Exchange::kWouldBlock:
      return;
    case Exchange::kClosed:
      lose(id, peer, State::kEnded);
      return;
    case Exchange::kDone:
      break;
  }
  PeerCredentials credentials;
  Hello hello;
  hello.name_bytes = static_cast<std::uint32_t>(name_.size());
  hello.server = peer->token;
  hello.client = token_;
  std::copy(name_.begin(), name_.end(), hello.name.begin());
  // The buffer of a new socket always has room for one HELLO.
  if (!read_credentials(peer->socket.get(), &credentials) || credentials.uid != ::geteuid() ||
      ::send(peer->socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) {
    lose(id, peer, State::kLost);
    return;
  }
  peer->state = State::kOpen;
  watch(EPOLL_CTL_ADD, peer->socket.get(), EPOLLIN | EPOLLRDHUP, kOutbound | id);
  flush(id, peer);
}

void BounceSocketLink::flush(PeerId id, Peer* peer) {
  while (!peer->queued.empty()) {
    const std::vector<std::byte>& frame = peer->queued.front();
    if (::send(peer->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0) {
      if (!would_block()) {
        lose(id, peer, errno == EPIPE || errno == ECONNRESET ? State::kEnded : State::kLost);
        return;
      }
      peer->awaits_room = true;
      watch(EPOLL_CTL_MOD, peer->socket.get(), EPOLLIN | EPOLLRDHUP | EPOLLOUT, kOutbound | id);
      return;
    }
    peer->queued.pop_front();
  }
  if (std::exchange(peer->awaits_room, false))
    watch(EPOLL_CTL_MOD, peer->socket.get(), EPOLLIN | EPOLLRDHUP, kOutbound | id);
}

bool BounceSocketLink::send(PeerId id, std::span<const std::byte> frame) {
  const auto entry = peers_.find(id);
  if (entry == peers_.end() || entry->second.is_lost()) return false;
  Peer& peer = entry->second;
  // A peer that does not read what it asked for is as good as gone.
  if (peer.queued.size() >= kMaxQueued) {
    lose(id, &peer, State::kLost);
    return false;
  }
  peer.queued.emplace_back(frame.begin(), frame.end());
  if (peer.state == State::kOpen) flush(id, &peer);
  return !peer.is_lost();
}

void BounceSocketLink::accept_all() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const auto unknown =
        std::count_if(inbound_.begin(), inbound_.end(), [](const auto& entry) { return !entry.second.is_known; });
    PeerCredentials credentials;
    if (static_cast<std::size_t>(unknown) >= kMaxUnknown || !read_credentials(socket.get(), &credentials) ||
        credentials.uid != ::geteuid()) {
      continue;
    }
    const std::uint64_t id = ++last_inbound_;
    watch(EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLRDHUP, id);
    Inbound inbound;
    inbound.socket = std::move(socket);
    inbound_.emplace(id, std::move(inbound));
  }
}

void BounceSocketLink::identify(std::uint64_t id, Inbound* inbound) {
  for (auto& [peer_id, peer] : peers_) {
    if (peer.name != inbound->name || !is_same(peer.token, inbound->token) || peer.inbound != 0 || peer.is_lost()) {
      continue;
    }
    peer.inbound = id;
    inbound->peer = peer_id;
    inbound->is_known = true;
    watch(EPOLL_CTL_MOD, inbound->socket.get(), EPOLLIN | EPOLLRDHUP, id);
    return;
  }
  // Not added yet. What it says stays in the socket until it is, and must not keep the thread awake.
  watch(EPOLL_CTL_MOD, inbound->socket.get(), 0, id);
}

BounceSocketLink::State BounceSocketLink::receive(std::uint64_t id, Inbound* inbound,
                                                  std::vector<Transport::Message>* frames) {
  std::array<std::byte, kMaxBounceFrameBytes + 1> buffer;
  while (true) {
    const ssize_t got = ::recv(inbound->socket.get(), buffer.data(), buffer.size(), 0);
    if (got < 0) return would_block() ? State::kOpen : errno == ECONNRESET ? State::kEnded : State::kLost;
    if (got == 0) return State::kEnded;
    if (static_cast<std::size_t>(got) > kMaxBounceFrameBytes) return State::kLost;
    if (inbound->is_known) {
      frames->push_back({inbound->peer, {buffer.begin(), buffer.begin() + got}});
      continue;
    }
    Hello hello;
    if (inbound->has_greeted || static_cast<std::size_t>(got) != sizeof hello) return State::kLost;
    std::memcpy(&hello, buffer.data(), sizeof hello);
    if (hello.magic != Hello::kMagic || hello.name_bytes > kMaxNameBytes || !is_same(hello.server, token_)) {
      return State::kLost;
    }
    inbound->has_greeted = true;
    inbound->name.assign(hello.name.data(), hello.name_bytes);
    inbound->token = hello.client;
    identify(id, inbound);
    if (!inbound->is_known) return State::kOpen;
  }
}

void BounceSocketLink::progress(std::vector<Transport::Message>* frames, std::vector<PeerId>* lost) {
  for (auto& [id, peer] : peers_) {
    if (peer.state == State::kConnecting) connect(id, &peer);
  }
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t id = event.data.u64;
    if (id == kListenerEvent) {
      accept_all();
      continue;
    }
    if ((id & kOutbound) != 0) {
      const auto entry = peers_.find(static_cast<PeerId>(id & ~kOutbound));
      if (entry == peers_.end() || entry->second.state != State::kOpen) continue;
      // Nothing is ever said on it, so that anything to read is its end.
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
        const bool is_closed = (event.events & (EPOLLRDHUP | EPOLLHUP)) != 0;
        lose(entry->first, &entry->second, is_closed ? State::kEnded : State::kLost);
      } else {
        flush(entry->first, &entry->second);
      }
      continue;
    }
    const auto entry = inbound_.find(id);
    if (entry == inbound_.end()) continue;
    const bool is_known = entry->second.is_known;
    // A connection that is not of anyone yet is only looked at for its end.
    State state = State::kOpen;
    if (!entry->second.has_greeted || is_known) {
      state = receive(id, &entry->second, frames);
    } else if ((event.events & (EPOLLHUP | EPOLLERR)) != 0) {
      state = State::kLost;
    }
    if (state == State::kOpen) continue;
    const auto peer = entry->second.is_known ? peers_.find(entry->second.peer) : peers_.end();
    if (peer != peers_.end()) {
      lose(peer->first, &peer->second, state);
    } else {
      inbound_.erase(entry);
    }
  }
  lost->insert(lost->end(), lost_.begin(), lost_.end());
  lost_.clear();
}

std::optional<TimePoint> BounceSocketLink::next_wakeup(TimePoint now) const {
  if (!lost_.empty()) return now;
  const bool is_connecting = std::any_of(peers_.begin(), peers_.end(),
                                         [](const auto& entry) { return entry.second.state == State::kConnecting; });
  return is_connecting ? std::optional(now + kRetryInterval) : std::nullopt;
}

}  // namespace kvt
