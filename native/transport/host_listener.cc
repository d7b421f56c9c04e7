#include "transport/host_listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace kvt {
namespace {

constexpr auto kHandoverLimit = std::chrono::seconds(2);
constexpr std::size_t kMaxUnservedClients = 256;
// How long no client is accepted after there were too many, or no descriptor was left for one.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

bool is_same(const HostToken& a, const HostToken& b) {
  // Every byte is looked at, so that the time tells nothing about the token.
  std::byte difference{};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

void watch(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

Status HostListener::open() {
  Status status = random_bytes(token_);
  if (!status.is_ok()) return status;
  status = listen_abstract(&socket_, &name_);
  if (status.is_ok()) watch(epoll_, EPOLL_CTL_ADD, socket_.get(), EPOLLIN, kListenerEvent);
  return status;
}

void HostListener::on_event(std::uint64_t event) {
  if (event == kListenerEvent) {
    accept_all();
    return;
  }
  const auto entry = clients_.find(event);
  if (entry == clients_.end()) return;
  const bool was_served = entry->second.state == ClientState::kServed;
  const bool stays = advance(event, &entry->second);
  const bool is_served = entry->second.state == ClientState::kServed;
  if (!was_served && (is_served || !stays)) --unserved_;
  if (!stays) clients_.erase(entry);
}

void HostListener::pause_accepting() {
  // Otherwise epoll would report the waiting client again and again.
  watch(epoll_, EPOLL_CTL_MOD, socket_.get(), 0, kListenerEvent);
  accepts_again_at_ = std::chrono::steady_clock::now() + kAcceptPause;
}

void HostListener::accept_all() {
  while (true) {
    if (unserved_ >= kMaxUnservedClients) return pause_accepting();
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) pause_accepting();
      return;
    }
    PeerCredentials credentials;
    if (!read_credentials(socket.get(), &credentials) || credentials.uid != ::geteuid()) continue;
    const std::uint64_t id = ++last_id_;
    watch(epoll_, EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLRDHUP, id);
    Client client;
    client.socket = std::move(socket);
    client.deadline = std::chrono::steady_clock::now() + kHandoverLimit;
    clients_.emplace(id, std::move(client));
    ++unserved_;
  }
}

bool HostListener::advance(std::uint64_t id, Client* client) {
  switch (client->state) {
    case ClientState::kAwaitsHello: {
      HelloMessage hello;
      const Exchange exchange = receive_hello(client->socket.get(), &hello);
      if (exchange == Exchange::kWouldBlock) return true;
      if (exchange == Exchange::kClosed) return false;
      if (!is_same(hello.token, token_) || hello.region_count > descriptors_->size()) return false;
      client->region_count = hello.region_count;
      client->state = ClientState::kTakesGrants;
      return send_grants(id, client);
    }
    case ClientState::kTakesGrants:
      return send_grants(id, client);
    case ClientState::kServed:
      // Nothing more is ever said: an event here is the end of the connection, or a breach of the protocol.
      return false;
  }
  return false;
}

bool HostListener::send_grants(std::uint64_t id, Client* client) {
  do {
    GrantMessage grant;
    grant.first = static_cast<std::uint32_t>(client->next_region);
    grant.total = static_cast<std::uint32_t>(client->region_count);
    grant.count =
        static_cast<std::uint32_t>(std::min(client->region_count - client->next_region, kDescriptorsPerGrant));
    std::array<int, kDescriptorsPerGrant> descriptors{};
    for (std::size_t i = 0; i < grant.count; ++i) descriptors[i] = (*descriptors_)[client->next_region + i];
    switch (send_grant(client->socket.get(), grant, std::span(descriptors).first(grant.count))) {
      case Exchange::kDone:
        client->next_region += grant.count;
        break;
      case Exchange::kWouldBlock:
        watch(epoll_, EPOLL_CTL_MOD, client->socket.get(), EPOLLOUT | EPOLLRDHUP, id);
        return true;
      case Exchange::kClosed:
        return false;
    }
  } while (client->next_region < client->region_count);
  client->state = ClientState::kServed;
  watch(epoll_, EPOLL_CTL_MOD, client->socket.get(), EPOLLIN | EPOLLRDHUP, id);
  return true;
}

void HostListener::drop_expired(TimePoint now) {
  if (unserved_ > 0) {
    unserved_ -= std::erase_if(clients_, [now](const auto& entry) {
      return entry.second.state != ClientState::kServed && entry.second.deadline <= now;
    });
  }
  if (accepts_again_at_ && *accepts_again_at_ <= now) {
    accepts_again_at_.reset();
    watch(epoll_, EPOLL_CTL_MOD, socket_.get(), EPOLLIN, kListenerEvent);
    accept_all();
  }
}

std::optional<TimePoint> HostListener::next_deadline() const {
  std::optional<TimePoint> earliest = accepts_again_at_;
  if (unserved_ == 0) return earliest;
  for (const auto& [id, client] : clients_) {
    if (client.state != ClientState::kServed && (!earliest || client.deadline < *earliest)) earliest = client.deadline;
  }
  return earliest;
}

}  // namespace kvt
