#include "transport/host_handover.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvt {
namespace {

constexpr int kBacklog = 64;

static_assert(sizeof(HelloMessage) == 24 && sizeof(GrantMessage) == 16);

bool is_transient() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS; }

socklen_t abstract_address(const std::string& name, sockaddr_un* out) {
  *out = sockaddr_un{};
  out->sun_family = AF_UNIX;
  // sun_path[0] stays NUL: the abstract name space, which needs no file and cleans up after itself.
  const std::size_t length = std::min(name.size(), sizeof out->sun_path - 1);
  std::memcpy(out->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

UniqueFd new_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

}  // namespace

Status random_bytes(std::span<std::byte> out) {
  if (::getrandom(out.data(), out.size(), 0) != static_cast<ssize_t>(out.size())) {
    return Status(StatusCode::kInternal, std::string("getrandom failed: ") + std::strerror(errno));
  }
  return Status::ok();
}

Status listen_abstract(const std::string& name, UniqueFd* out) {
  UniqueFd socket = new_socket();
  sockaddr_un address{};
  const socklen_t length = abstract_address(name, &address);
  if (!socket.is_open() || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return Status(StatusCode::kResource, std::string("cannot listen for peers: ") + std::strerror(errno));
  }
  *out = std::move(socket);
  return Status::ok();
}

Status listen_abstract(UniqueFd* out, std::string* name) {
  std::array<std::byte, 16> random{};
  Status status = random_bytes(random);
  if (!status.is_ok()) return status;
  std::string chosen = "kv-transceiver-";
  for (const std::byte b : random) {
    chosen += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4U];
    chosen += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15U];
  }
  status = listen_abstract(chosen, out);
  if (status.is_ok()) *name = std::move(chosen);
  return status;
}

Exchange connect_abstract(const std::string& name, UniqueFd* out) {
  UniqueFd socket = new_socket();
  if (!socket.is_open()) return Exchange::kWouldBlock;  // out of descriptors for now; the caller's deadline bounds it
  sockaddr_un address{};
  const socklen_t length = abstract_address(name, &address);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return is_transient() ? Exchange::kWouldBlock : Exchange::kClosed;
  }
  *out = std::move(socket);
  return Exchange::kDone;
}

bool read_credentials(int socket, PeerCredentials* out) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  *out = {credentials.pid, credentials.uid};
  return true;
}

Exchange send_hello(int socket, const HelloMessage& hello) {
  const ssize_t sent = ::send(socket, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(sizeof hello)) return Exchange::kDone;
  return sent < 0 && is_transient() ? Exchange::kWouldBlock : Exchange::kClosed;
}

Exchange receive_hello(int socket, HelloMessage* out) {
  // One byte more than a HELLO, so that a longer message is told from one.
  std::array<std::byte, sizeof(HelloMessage) + 1> buffer{};
  const ssize_t received = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (received < 0 && is_transient()) return Exchange::kWouldBlock;
  if (received != static_cast<ssize_t>(sizeof(HelloMessage))) return Exchange::kClosed;
  HelloMessage hello;
  std::memcpy(&hello, buffer.data(), sizeof hello);
  if (hello.magic != HelloMessage::kMagic) return Exchange::kClosed;
  *out = hello;
  return Exchange::kDone;
}

Exchange send_grant(int socket, const GrantMessage& grant, std::span<const int> descriptors) {
  GrantMessage body = grant;
  iovec part{&body, sizeof body};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsPerGrant)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(sizeof body)) return Exchange::kDone;
  // ETOOMANYREFS: too many descriptors under way for this user; they are taken out as peers read them.
  return sent < 0 && (is_transient() || errno == ETOOMANYREFS) ? Exchange::kWouldBlock : Exchange::kClosed;
}

Exchange receive_grant(int socket, GrantMessage* out, std::array<UniqueFd, kDescriptorsPerGrant>* descriptors) {
  GrantMessage body;
  iovec part{&body, sizeof body};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsPerGrant)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return is_transient() ? Exchange::kWouldBlock : Exchange::kClosed;

  // Descriptors are taken over before anything is judged, or a bad message would leak them.
  std::size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here && count < kDescriptorsPerGrant; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      (*descriptors)[count++].reset(fd);
    }
  }
  const bool is_whole = received == static_cast<ssize_t>(sizeof body) &&
                        (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && body.magic == GrantMessage::kMagic &&
                        body.count == count;
  if (!is_whole) return Exchange::kClosed;
  *out = body;
  return Exchange::kDone;
}

bool is_connected(int socket) {
  pollfd state{socket, POLLIN | POLLRDHUP, 0};
  return ::poll(&state, 1, 0) <= 0 || (state.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) == 0;
}

}  // namespace kvt
