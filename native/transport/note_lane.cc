#include "transport/note_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvt {
namespace {

constexpr std::uint64_t kListenerEvent = 0;
constexpr std::uint64_t kOutbound = std::uint64_t{1} << 63;
constexpr auto kRetryInterval = std::chrono::milliseconds(2);
// Connections that have not said who they are, or are of nobody that was added.
constexpr std::size_t kMaxUnknown = 256;
// A peer that cuts the connection and lives on has forgotten this side, and may add it again. Not for ever.
constexpr int kMaxReconnects = 8;
// Of one connection at a time, so that one that never stops does not hold up the transfers.
constexpr int kMessagesPerTurn = 16;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS; }

std::string socket_name(const NoteLaneId& id) {
  std::string name = "kv-transceiver-note-";
  for (const std::byte b : id) {
    name += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4U];
    name += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15U];
  }
  return name;
}

}  // namespace

void NoteLane::watch(int operation, int socket, std::uint32_t events, std::uint64_t id) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll_.get(), operation, socket, &event);
}

Status NoteLane::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) {
    return Status(StatusCode::kResource, std::string("epoll_create1 failed: ") + std::strerror(errno));
  }
  NoteLaneId id{};
  Status status = random_bytes(id);
  ProcessIdentity self;
  if (status.is_ok()) status = own_identity(&self);
  if (status.is_ok()) status = listen_abstract(socket_name(id), &listener_);
  if (!status.is_ok()) return status;
  watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent);
  id_ = id;
  self_ = self;
  return Status::ok();
}

void NoteLane::add_peer(PeerId id, const NoteLaneId& lane, const ProcessIdentity& process) {
  // In another process namespace the kernel names processes otherwise, or not at all.
  if (!self_ || lane == NoteLaneId{} || process.boot_id != self_->boot_id ||
      process.pid_namespace != self_->pid_namespace || peers_.contains(id)) {
    return;
  }
  Peer& peer = peers_[id];
  peer.id = lane;
  peer.pid = process.pid;
  connect(id, &peer);
  for (auto& [inbound_id, inbound] : inbound_) {
    if (inbound.has_greeted && !inbound.peer) identify(inbound_id, &inbound);
  }
}

void NoteLane::remove_peer(PeerId id) {
  const auto entry = peers_.find(id);
  if (entry == peers_.end()) return;
  if (entry->second.inbound != 0) inbound_.erase(entry->second.inbound);
  peers_.erase(entry);
}

void NoteLane::lose(Peer* peer) {
  peer->state = State::kLost;
  peer->socket.reset();
}

void NoteLane::connect(PeerId id, Peer* peer) {
  switch (connect_abstract(socket_name(peer->id), &peer->socket)) {
    case Exchange::kWouldBlock:
      return;
    case Exchange::kClosed:
      lose(peer);
      return;
    case Exchange::kDone:
      break;
  }
  PeerCredentials credentials;
  Hello hello;
  hello.client = id_;
  // The buffer of a new socket always has room for one HELLO.
  if (!read_credentials(peer->socket.get(), &credentials) || credentials.uid != ::geteuid() ||
      static_cast<std::uint32_t>(credentials.pid) != peer->pid ||
      ::send(peer->socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) {
    lose(peer);
    return;
  }
  peer->state = State::kOpen;
  watch(EPOLL_CTL_ADD, peer->socket.get(), EPOLLIN | EPOLLRDHUP, kOutbound | id);
}

bool NoteLane::transmit(PeerId id, Kind kind, std::span<const std::byte> bytes) {
  const auto entry = peers_.find(id);
  if (entry == peers_.end() || entry->second.state != State::kOpen || bytes.size() > kMaxNoteBytes) return false;
  std::array<std::byte, 1 + kMaxNoteBytes> message;
  message[0] = static_cast<std::byte>(kind);
  std::copy(bytes.begin(), bytes.end(), message.begin() + 1);
  // What does not fit is dropped: its reader is behind, and the control plane says the same.
  if (::send(entry->second.socket.get(), message.data(), 1 + bytes.size(), MSG_NOSIGNAL) >= 0) return true;
  if (!would_block()) lose(&entry->second);
  return false;
}

void NoteLane::announce(PeerId peer) { (void)transmit(peer, Kind::kSoon, {}); }

bool NoteLane::send(PeerId peer, std::span<const std::byte> note) {
  return !note.empty() && transmit(peer, Kind::kNote, note);
}

void NoteLane::accept_all() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const auto unknown =
        std::count_if(inbound_.begin(), inbound_.end(), [](const auto& entry) { return !entry.second.peer; });
    PeerCredentials credentials;
    if (static_cast<std::size_t>(unknown) >= kMaxUnknown || !read_credentials(socket.get(), &credentials) ||
        credentials.uid != ::geteuid()) {
      (void)refuse();
      continue;
    }
    const std::uint64_t id = ++last_inbound_;
    watch(EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLRDHUP, id);
    Inbound inbound;
    inbound.socket = std::move(socket);
    inbound.pid = static_cast<std::uint32_t>(credentials.pid);
    inbound_.emplace(id, std::move(inbound));
  }
}

void NoteLane::identify(std::uint64_t id, Inbound* inbound) {
  for (auto& [peer_id, peer] : peers_) {
    if (peer.id != inbound->id || peer.pid != inbound->pid || peer.inbound != 0) continue;
    peer.inbound = id;
    inbound->peer = peer_id;
    watch(EPOLL_CTL_MOD, inbound->socket.get(), EPOLLIN | EPOLLRDHUP, id);
    return;
  }
  // Not added yet. What it says stays in the socket until it is, and must not keep the thread awake.
  watch(EPOLL_CTL_MOD, inbound->socket.get(), 0, id);
}

bool NoteLane::refuse() {
  gauges_->add(NoteGauge::kRefused);
  return false;
}

bool NoteLane::receive(std::uint64_t id, Inbound* inbound, TimePoint now, std::vector<Transport::Message>* out) {
  // One byte more than the longest message, so that a longer one is told from it.
  std::array<std::byte, kMaxNoteBytes + 2> buffer;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    const ssize_t got = ::recv(inbound->socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return would_block();
    if (got == 0) return false;
    const auto size = static_cast<std::size_t>(got);
    if (!inbound->has_greeted) {
      Hello hello;
      if (size != sizeof hello) return refuse();
      std::memcpy(&hello, buffer.data(), sizeof hello);
      if (hello.magic != Hello::kMagic) return refuse();
      inbound->has_greeted = true;
      inbound->id = hello.client;
      identify(id, inbound);
      if (!inbound->peer) return true;
      continue;
    }
    if (size == 1 && buffer[0] == static_cast<std::byte>(Kind::kSoon)) {
      awake_until_ = now + kAwake;
    } else if (size > 1 && size <= 1 + kMaxNoteBytes && buffer[0] == static_cast<std::byte>(Kind::kNote)) {
      awake_until_.reset();
      out->push_back({*inbound->peer, {buffer.begin() + 1, buffer.begin() + got}});
    } else {
      return refuse();
    }
  }
  return true;
}

void NoteLane::drop(std::uint64_t id) {
  const auto entry = inbound_.find(id);
  if (entry == inbound_.end()) return;
  if (entry->second.peer) {
    const auto peer = peers_.find(*entry->second.peer);
    if (peer != peers_.end()) peer->second.inbound = 0;
  }
  inbound_.erase(entry);
}

void NoteLane::progress(TimePoint now, std::vector<Transport::Message>* out) {
  if (awake_until_ && now >= *awake_until_) awake_until_.reset();
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
      // Nothing is ever said on it, so that anything to read is its end.
      if (entry == peers_.end() || entry->second.state != State::kOpen) continue;
      lose(&entry->second);
      if (++entry->second.reconnects <= kMaxReconnects) entry->second.state = State::kConnecting;
      continue;
    }
    const auto entry = inbound_.find(id);
    if (entry == inbound_.end()) continue;
    Inbound& inbound = entry->second;
    // A connection that is not of anyone yet is only looked at for its end.
    const bool is_over = inbound.has_greeted && !inbound.peer ? (event.events & (EPOLLHUP | EPOLLERR)) != 0
                                                              : !receive(id, &inbound, now, out);
    if (is_over) drop(id);
  }
}

std::optional<TimePoint> NoteLane::next_wakeup(TimePoint now) const {
  if (awake_until_) return now;
  const bool is_connecting = std::any_of(peers_.begin(), peers_.end(),
                                         [](const auto& entry) { return entry.second.state == State::kConnecting; });
  return is_connecting ? std::optional(now + kRetryInterval) : std::nullopt;
}

}  // namespace kvt
