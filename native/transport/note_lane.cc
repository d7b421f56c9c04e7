#include "transport/note_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
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
// Whatever peers announce, this thread looks for notes a tenth of the time.
constexpr int kRestFactor = 9;
// Of one connection at a time, so that one that never stops does not hold up the transfers.
constexpr int kMessagesPerTurn = 16;

constexpr const char* kHidden =
    " go by the control plane alone, which takes longer: it runs in another process namespace, where the kernel cannot "
    "say who speaks; let both share one (hostPID, or shareProcessNamespace of one pod)";

constexpr const char* kUnreached =
    "reports to it go by the control plane alone, which takes longer: nobody answers for it on this machine; let both "
    "run "
    "in one network namespace and as one user, if it has not ended";

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

bool NoteLane::is_near(const NoteLaneId& id, const ProcessIdentity& process) const {
  // In another process namespace the kernel names processes otherwise, or not at all.
  return self_ && id != NoteLaneId{} && process.boot_id == self_->boot_id &&
         process.pid_namespace == self_->pid_namespace;
}

bool NoteLane::is_hidden(const NoteLaneId& id, const ProcessIdentity& process) const {
  return self_ && id != NoteLaneId{} && process.boot_id == self_->boot_id &&
         process.pid_namespace != self_->pid_namespace;
}

void NoteLane::add_peer(PeerId id, const NoteLaneId& lane, const ProcessIdentity& process) {
  if (is_hidden(lane, process)) silences_.push_back({id, std::string("reports to it") + kHidden});
  if (!is_near(lane, process) || peers_.contains(id)) return;
  Peer& peer = peers_[id];
  peer.id = lane;
  peer.pid = process.pid;
  connect(id, &peer);
}

void NoteLane::remove_peer(PeerId id) { peers_.erase(id); }

void NoteLane::hear(WatchId speaker, const NoteLaneId& lane, const ProcessIdentity& process) {
  // As many as there are have one remedy.
  if (is_hidden(lane, process) && !std::exchange(has_told_of_speakers_, true)) {
    silences_.push_back({std::nullopt, std::string("reports of a process of this machine") + kHidden});
  }
  if (!is_near(lane, process)) return;
  speakers_[speaker] = {lane, process.pid};
  for (auto& [id, inbound] : inbound_) {
    if (inbound.has_greeted && inbound.id == lane) identify(id, &inbound);
  }
}

void NoteLane::ignore(WatchId speaker) {
  if (speakers_.erase(speaker) == 0) return;
  for (auto& [id, inbound] : inbound_) {
    if (inbound.speaker == speaker) identify(id, &inbound);
  }
}

void NoteLane::miss(PeerId id, Peer* peer) {
  // One that was reached before has ended.
  if (peer->reconnects == 0) silences_.push_back({id, kUnreached});
  lose(peer);
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
      miss(id, peer);
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
    miss(id, peer);
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

void NoteLane::announce(PeerId peer, std::span<const std::byte> note) { (void)transmit(peer, Kind::kSoon, note); }

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
        std::count_if(inbound_.begin(), inbound_.end(), [](const auto& entry) { return !entry.second.speaker; });
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
  inbound->speaker.reset();
  for (const auto& [name, speaker] : speakers_) {
    if (speaker.id == inbound->id && speaker.pid == inbound->pid) inbound->speaker = name;
  }
  // Of nobody that is heard: what it says stays in the socket until it is, and must not keep the thread awake.
  watch(EPOLL_CTL_MOD, inbound->socket.get(), inbound->speaker ? EPOLLIN | EPOLLRDHUP : 0, id);
}

bool NoteLane::refuse() {
  gauges_->add(NoteGauge::kRefused);
  return false;
}

bool NoteLane::receive(std::uint64_t id, Inbound* inbound, TimePoint now, std::vector<InboundNote>* out) {
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
      if (!inbound->speaker) return true;
      continue;
    }
    const auto kind = static_cast<Kind>(buffer[0]);
    const bool is_soon = kind == Kind::kSoon;
    if (size < 2 || size > 1 + kMaxNoteBytes || (kind != Kind::kNote && !is_soon)) return refuse();
    if (is_soon && !stay_awake(now)) continue;
    if (!is_soon && announced_ > 0 && --announced_ == 0) may_sleep(now);
    out->push_back({*inbound->speaker,
                    is_soon ? InboundNote::Kind::kSoon : InboundNote::Kind::kNote,
                    {buffer.begin() + 1, buffer.begin() + got}});
  }
  return true;
}

bool NoteLane::stay_awake(TimePoint now) {
  if (now < rests_until_) return false;
  ++announced_;
  if (!awake_since_) awake_since_ = now;
  return true;
}

void NoteLane::may_sleep(TimePoint now) {
  if (awake_since_) rests_until_ = now + kRestFactor * (now - *awake_since_);
  awake_since_.reset();
  announced_ = 0;
}

void NoteLane::progress(TimePoint now, std::vector<InboundNote>* out) {
  if (awake_since_ && now >= *awake_since_ + kAwake) may_sleep(now);
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
      if (++entry->second.reconnects <= kMaxReconnects) {
        entry->second.state = State::kConnecting;
      } else {
        silences_.push_back(
            {entry->first, "reports to it go by the control plane alone: it closed the connection for them " +
                               std::to_string(entry->second.reconnects) +
                               " times; let it keep this side added, then remove and add it here again"});
      }
      continue;
    }
    const auto entry = inbound_.find(id);
    if (entry == inbound_.end()) continue;
    Inbound& inbound = entry->second;
    // A connection that is not of anyone yet is only looked at for its end.
    const bool is_over = inbound.has_greeted && !inbound.speaker ? (event.events & (EPOLLHUP | EPOLLERR)) != 0
                                                                 : !receive(id, &inbound, now, out);
    if (is_over) inbound_.erase(entry);
  }
}

void NoteLane::take_silences(std::vector<Silence>* out) {
  out->insert(out->end(), std::make_move_iterator(silences_.begin()), std::make_move_iterator(silences_.end()));
  silences_.clear();
}

std::optional<TimePoint> NoteLane::next_wakeup(TimePoint now) const {
  if (awake_since_) return now;
  const bool is_connecting = std::any_of(peers_.begin(), peers_.end(),
                                         [](const auto& entry) { return entry.second.state == State::kConnecting; });
  return is_connecting ? std::optional(now + kRetryInterval) : std::nullopt;
}

}  // namespace kvt
