#include "transport/host_peer.h"

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

HostPeer::HostPeer(HostMetadata metadata, int epoll, std::uint64_t event, TimePoint deadline)
    : metadata_(std::move(metadata)), epoll_(epoll), event_(event), deadline_(deadline) {
  for (const MemoryRange& range : metadata_.regions) (void)regions_.add(range);
  connect();
}

std::string HostPeer::describe() const {
  return pid_ == 0 ? "host peer " + metadata_.socket_name
                   : "host peer " + metadata_.socket_name + " (pid " + std::to_string(pid_) + ")";
}

void HostPeer::fail(StatusCode code, const std::string& what) {
  state_ = PeerState::kFailed;
  error_ = Status(code, describe() + ": " + what);
  // Mappings stay until the peer is removed: addresses handed out before remain valid. The socket would only make epoll
  // spin.
  socket_.reset();
}

void HostPeer::connect() {
  switch (connect_abstract(metadata_.socket_name, &socket_)) {
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
  hello.region_count = static_cast<std::uint32_t>(regions_.ranges().size());
  hello.token = metadata_.token;
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

void HostPeer::receive() {
  const std::size_t wanted = regions_.ranges().size();
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
    if (grant.total != wanted || grant.first != mappings_.size() || grant.count > wanted - mappings_.size() ||
        (grant.count == 0 && wanted != 0)) {
      fail(StatusCode::kTransport, "it handed over other memory than its metadata says");
      return;
    }
    for (std::size_t i = 0; i < grant.count; ++i) {
      SharedMapping mapping;
      const Status status =
          SharedMapping::adopt(std::move(descriptors[i]), regions_.ranges()[mappings_.size()].size, &mapping);
      if (!status.is_ok()) {
        fail(status.code(), status.message());
        return;
      }
      mappings_.push_back(std::move(mapping));
    }
  } while (mappings_.size() < wanted);
  state_ = PeerState::kReady;
}

void HostPeer::advance(TimePoint now) {
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

std::optional<TimePoint> HostPeer::next_wakeup(TimePoint now) const {
  if (state_ != PeerState::kConnecting) return std::nullopt;
  return socket_.is_open() ? deadline_ : std::min(deadline_, now + kRetryInterval);
}

bool HostPeer::check_alive() {
  if (state_ == PeerState::kReady && !is_connected(socket_.get())) {
    fail(StatusCode::kPeerLost, "it is gone: its process ended or its agent closed");
  }
  return state_ == PeerState::kReady;
}

std::uintptr_t HostPeer::translate(std::uintptr_t address, std::size_t size) const {
  const std::vector<MemoryRange>& ranges = regions_.ranges();
  // Runs of one slice nearly always fall into one region.
  if (last_region_ < ranges.size()) {
    const MemoryRange& range = ranges[last_region_];
    const std::size_t offset = address - range.base;
    if (address >= range.base && offset <= range.size && size <= range.size - offset) {
      return mappings_[last_region_].base() + offset;
    }
  }
  const std::size_t index = regions_.find(address, size);
  if (index == RegionSet::kNone) return 0;
  last_region_ = index;
  return mappings_[index].base() + (address - ranges[index].base);
}

}  // namespace kvt
