#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"
#include "core/unique_fd.h"
#include "transport/host_metadata.h"

namespace kvt {

// The two messages by which shared memory changes hands over an abstract SOCK_SEQPACKET socket. The connection stays
// open afterwards: its end tells each side that the other process or agent is gone.
//
//   HELLO  client -> server   magic 4 | regions wanted 4 | token 16
//   GRANT  server -> client   magic 4 | first 4 | count 4 | total 4, with `count` descriptors; as many as it takes
struct HelloMessage {
  std::uint32_t magic = kMagic;
  std::uint32_t region_count = 0;
  HostToken token{};
  static constexpr std::uint32_t kMagic = 0x48545648;
};

struct GrantMessage {
  std::uint32_t magic = kMagic;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t total = 0;
  static constexpr std::uint32_t kMagic = 0x47545648;
};

// Below the kernel's limit of 253 descriptors a message.
inline constexpr std::size_t kDescriptorsPerGrant = 64;

// What a non-blocking step of the hand-over came to.
enum class Exchange : std::uint8_t { kDone, kWouldBlock, kClosed };

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// Binds and listens under this name, in the abstract name space.
Status listen_abstract(const std::string& name, UniqueFd* out);
// The same under a random name, which it returns.
Status listen_abstract(UniqueFd* out, std::string* name);
// kWouldBlock when the backlog is full; kClosed when nobody listens there.
Exchange connect_abstract(const std::string& name, UniqueFd* out);
bool read_credentials(int socket, PeerCredentials* out);
Status random_bytes(std::span<std::byte> out);

Exchange send_hello(int socket, const HelloMessage& hello);
Exchange receive_hello(int socket, HelloMessage* out);
Exchange send_grant(int socket, const GrantMessage& grant, std::span<const int> descriptors);
// kClosed also for a message that is not a grant or lost descriptors.
Exchange receive_grant(int socket, GrantMessage* out, std::array<UniqueFd, kDescriptorsPerGrant>* descriptors);
// Whether the other side still holds its end open.
bool is_connected(int socket);

}  // namespace kvt
