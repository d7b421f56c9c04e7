#include "transport/bounce_near_link.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "transport/process_watch.h"

namespace kvt {
namespace {

// Empty where /proc does not say.
std::vector<std::byte> own_place() {
  ProcessIdentity identity;
  struct stat net {};
  if (!own_identity(&identity).is_ok() || ::stat("/proc/self/ns/net", &net) != 0) return {};
  const std::uint64_t inode = net.st_ino;
  const std::uint64_t user = ::geteuid();
  std::vector<std::byte> out(BounceNearLink::kPlaceBytes);
  std::copy(identity.boot_id.begin(), identity.boot_id.end(), out.begin());
  std::memcpy(out.data() + 16, &inode, sizeof inode);
  std::memcpy(out.data() + 24, &user, sizeof user);
  return out;
}

}  // namespace

Status BounceNearLink::open() {
  place_ = own_place();
  Status status = messages_.open();
  return status.is_ok() ? sockets_.open() : status;
}

std::vector<std::byte> BounceNearLink::address() const {
  if (place_.empty()) return {};
  std::vector<std::byte> out = place_;
  const std::vector<std::byte> socket = sockets_.address();
  out.insert(out.end(), socket.begin(), socket.end());
  return out;
}

Status BounceNearLink::add_peer(PeerId peer, std::span<const std::byte> address) {
  const bool is_near =
      !place_.empty() && address.size() > kPlaceBytes && std::equal(place_.begin(), place_.end(), address.begin());
  if (!is_near) {
    far_.insert(peer);
    return messages_.add_peer(peer, address);
  }
  Status status = sockets_.add_peer(peer, address.subspan(kPlaceBytes));
  if (status.is_ok()) near_.insert(peer);
  return status;
}

void BounceNearLink::remove_peer(PeerId peer) {
  if (near_.erase(peer) > 0) sockets_.remove_peer(peer);
  if (far_.erase(peer) > 0) messages_.remove_peer(peer);
}

bool BounceNearLink::send(PeerId peer, std::span<const std::byte> frame) {
  if (near_.contains(peer)) return sockets_.send(peer, frame);
  return far_.contains(peer) && messages_.send(peer, frame);
}

void BounceNearLink::progress(std::vector<Transport::Message>* frames, std::vector<PeerId>* lost) {
  sockets_.progress(frames, lost);
  const std::size_t of_sockets = frames->size();
  messages_.progress(frames, lost);
  // A peer that is near says nothing by message: whoever claims its name there is another.
  const auto begin = frames->begin() + static_cast<std::ptrdiff_t>(of_sockets);
  frames->erase(std::remove_if(begin, frames->end(),
                               [this](const Transport::Message& message) { return !far_.contains(message.peer); }),
                frames->end());
}

}  // namespace kvt
