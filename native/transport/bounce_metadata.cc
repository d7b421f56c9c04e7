#include "transport/bounce_metadata.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "transport/bounce_link.h"

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'K', 'V', 'T', 'B', 'N', 'C', 'E', '\n'};
constexpr std::size_t kChecksumAt = 40;
constexpr std::size_t kHeadBytes = 48;

template <typename T>
void write_at(std::vector<std::byte>* bytes, std::size_t offset, const T& value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

template <typename T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::uint64_t checksum(std::span<const std::byte> head, std::span<const std::byte> address) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::span<const std::byte> part : {head.first(kChecksumAt), address}) {
    for (const std::byte value : part) hash = (hash ^ std::to_integer<std::uint8_t>(value)) * 0x100000001b3ull;
  }
  return hash;
}

Status refuse(const std::string& what) {
  return Status(StatusCode::kTransport, "the head of a bounce agent's metadata is " + what);
}

}  // namespace

std::vector<std::byte> wrap_bounce_metadata(const BounceMetadata& bounce, std::span<const std::byte> base) {
  std::vector<std::byte> out(kHeadBytes + bounce.link_address.size() + base.size());
  write_at(&out, 0, kMagic);
  write_at(&out, 8, bounce.version);
  write_at(&out, 10, bounce.link);
  write_at(&out, 11, bounce.kind);
  write_at(&out, 12, static_cast<std::uint32_t>(bounce.link_address.size()));
  write_at(&out, 16, bounce.arena_base);
  write_at(&out, 24, bounce.arena_bytes);
  write_at(&out, 32, bounce.max_chunk);
  write_at(&out, kChecksumAt, checksum(out, bounce.link_address));
  const auto rest = std::copy(bounce.link_address.begin(), bounce.link_address.end(), out.begin() + kHeadBytes);
  std::copy(base.begin(), base.end(), rest);
  return out;
}

Status unwrap_bounce_metadata(std::span<const std::byte> metadata, std::span<const std::byte>* base,
                              std::optional<BounceMetadata>* out) {
  if (out != nullptr) out->reset();
  *base = metadata;
  if (metadata.size() < sizeof kMagic || std::memcmp(metadata.data(), kMagic, sizeof kMagic) != 0) return Status::ok();
  if (metadata.size() < kHeadBytes) return refuse("cut");
  const auto address_bytes = read_at<std::uint32_t>(metadata, 12);
  if (address_bytes > kMaxBounceLinkAddress || address_bytes > metadata.size() - kHeadBytes) return refuse("cut");
  const std::span<const std::byte> address = metadata.subspan(kHeadBytes, address_bytes);
  if (read_at<std::uint64_t>(metadata, kChecksumAt) != checksum(metadata, address)) return refuse("damaged");
  *base = metadata.subspan(kHeadBytes + address_bytes);
  if (out == nullptr) return Status::ok();
  BounceMetadata head;
  head.version = read_at<std::uint16_t>(metadata, 8);
  head.link = read_at<BounceLinkKind>(metadata, 10);
  head.kind = read_at<MemoryKind>(metadata, 11);
  head.arena_base = read_at<std::uint64_t>(metadata, 16);
  head.arena_bytes = read_at<std::uint64_t>(metadata, 24);
  head.max_chunk = read_at<std::uint64_t>(metadata, 32);
  head.link_address.assign(address.begin(), address.end());
  *out = std::move(head);
  return Status::ok();
}

}  // namespace kvt
