#include "transport/handover_client.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvt {
namespace {

// How soon a connection that found the peer's backlog full is tried again.
constexpr auto kRetryInterval = std::chrono::milliseconds(2);

}  // namespace

HandoverClient::HandoverClient(std::string description, std::string socket_name, const HostToken& token,
                               std::size_t wanted, int epoll, std::uint64_t event, TimePoint deadline)
    : description_(std::move(description)),
      socket_name_(std::move(socket_name)),
      token_(token),
      wanted_(wanted),
      epoll_(epoll),
      event_(event),
      deadline_(deadline) {
  connect();
}

void HandoverClient::fail(StatusCode code, const std::string& what) {
  state_ = PeerState::kFailed;
  const std::string pid = pid_ == 0 ? "" : " (pid " + std::to_string(pid_) + ")";
  error_ = Status(code, description_ + " " + socket_name_ + pid + ": " + what);
  // The socket would only make epoll spin.
  socket_.reset();
}

void HandoverClient::connect() {
  switch (connect_abstract(socket_name_, &socket_)) {
    case Exchange::kWouldBlock:
      return;
    case Exchange::kClosed:
      fail(StatusCode::kPeerLost,
           "nobody listens there; its process ended, its agent closed, or it runs in another network namespace");
      return;
    case Exchange::kDone:
      break;
  }
  PeerCredentials credentials;
  if (!read_credentials(socket_.get(), &credentials) || credentials.uid != ::geteuid()) {
    fail(StatusCode::kTransport, "it belongs to another user");
    return;
  }
  pid_ = credentials.pid;
  HelloMessage hello;
  hello.region_count = static_cast<std::uint32_t>(wanted_);
  hello.token = token_;
  // The send buffer of a new socket always has room for one HELLO.
  if (send_hello(socket_.get(), hello) != Exchange::kDone) {
    fail(StatusCode::kPeerLost, "the connection closed before the hand-over");
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = event_;
  (void)::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_.get(), &event);
}

void HandoverClient::receive() {
  do {
    GrantMessage grant;
    std::array<UniqueFd, kDescriptorsPerGrant> descriptors;
    switch (receive_grant(socket_.get(), &grant, &descriptors)) {
      case Exchange::kWouldBlock:
        return;
      case Exchange::kClosed:
        fail(StatusCode::kPeerLost,
             "it refused to hand over its memory, or ended while it did; ask it for new metadata");
        return;
      case Exchange::kDone:
        break;
    }
    if (grant.total != wanted_ || grant.first != descriptors_.size() || grant.count > wanted_ - descriptors_.size() ||
        (grant.count == 0 && wanted_ != 0)) {
      fail(StatusCode::kTransport, "it handed over other memory than its metadata says");
      return;
    }
    for (std::size_t i = 0; i < grant.count; ++i) descriptors_.push_back(std::move(descriptors[i]));
  } while (descriptors_.size() < wanted_);
  state_ = PeerState::kReady;
}

void HandoverClient::advance(TimePoint now) {
  switch (state_) {
    case PeerState::kConnecting:
      if (!socket_.is_open()) connect();
      if (state_ == PeerState::kConnecting && socket_.is_open()) receive();
      if (state_ == PeerState::kConnecting && now >= deadline_) {
        fail(StatusCode::kTransport,
             "it did not hand over its memory within 2 seconds; its progress thread is stuck or stopped");
      }
      return;
    case PeerState::kReady:
      (void)check_alive();
      return;
    case PeerState::kFailed:
      return;
  }
}

std::optional<TimePoint> HandoverClient::next_wakeup(TimePoint now) const {
  if (state_ != PeerState::kConnecting) return std::nullopt;
  return socket_.is_open() ? deadline_ : std::min(deadline_, now + kRetryInterval);
}

bool HandoverClient::check_alive() {
  if (state_ == PeerState::kReady && !is_connected(socket_.get())) {
    fail(StatusCode::kPeerLost, "it is gone: its process ended or its agent closed");
  }
  return state_ == PeerState::kReady;
}

}  // namespace kvt
