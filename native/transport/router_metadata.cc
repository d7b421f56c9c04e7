#include "transport/router_metadata.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'K', 'V', 'T', 'R', 'O', 'U', 'T', 'E'};
constexpr std::uint32_t kVersion = 1;

struct Footer {
  std::uint32_t base_bytes;
  std::uint32_t p2p_bytes;
  std::uint32_t more_bytes;
  std::uint32_t version;
  std::array<std::byte, 16> boot_id;
  std::uint64_t pid_namespace;
  std::uint64_t start_time;
  std::uint32_t pid;
  NoteLaneId note_lane;
  std::uint64_t checksum;
  char magic[8];
};
static_assert(sizeof(Footer) == 80);
constexpr std::size_t kSummedFooterBytes = 64;

std::uint64_t fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

Status refuse(const std::string& what) {
  return {StatusCode::kTransport, "this is not valid metadata of an agent: " + what};
}

}  // namespace

std::vector<std::byte> encode_router_metadata(const RouterMetadata& metadata) {
  std::vector<std::byte> out;
  out.reserve(metadata.base.size() + metadata.p2p.size() + metadata.more.size() + sizeof(Footer));
  for (const auto* part : {&metadata.base, &metadata.p2p, &metadata.more}) {
    out.insert(out.end(), part->begin(), part->end());
  }
  Footer footer{};
  footer.base_bytes = static_cast<std::uint32_t>(metadata.base.size());
  footer.p2p_bytes = static_cast<std::uint32_t>(metadata.p2p.size());
  footer.more_bytes = static_cast<std::uint32_t>(metadata.more.size());
  footer.version = kVersion;
  footer.boot_id = metadata.process.boot_id;
  footer.pid_namespace = metadata.process.pid_namespace;
  footer.start_time = metadata.process.start_time;
  footer.pid = metadata.process.pid;
  footer.note_lane = metadata.note_lane;
  std::memcpy(footer.magic, kMagic, sizeof kMagic);
  const std::size_t at = out.size();
  out.resize(at + sizeof footer);
  std::memcpy(out.data() + at, &footer, sizeof footer);
  footer.checksum = fnv1a(std::span(out).first(at + kSummedFooterBytes));
  std::memcpy(out.data() + at, &footer, sizeof footer);
  return out;
}

Status decode_router_metadata(std::span<const std::byte> bytes, RouterMetadata* out) {
  if (bytes.size() < sizeof(Footer)) return refuse("it has " + std::to_string(bytes.size()) + " bytes");
  Footer footer{};
  const std::size_t at = bytes.size() - sizeof footer;
  std::memcpy(&footer, bytes.data() + at, sizeof footer);
  if (std::memcmp(footer.magic, kMagic, sizeof kMagic) != 0) return refuse("it does not end with KVTROUTE");
  if (footer.version != kVersion) {
    return refuse("version " + std::to_string(footer.version) + ", this agent speaks 1");
  }
  const std::uint64_t stated =
      std::uint64_t{footer.base_bytes} + std::uint64_t{footer.p2p_bytes} + std::uint64_t{footer.more_bytes};
  if (stated != at) return refuse("its length does not fit its parts");
  if (footer.checksum != fnv1a(bytes.first(at + kSummedFooterBytes))) return refuse("it was damaged on the way");
  RouterMetadata made;
  const auto part = [bytes](std::size_t begin, std::size_t size) {
    const auto view = bytes.subspan(begin, size);
    return std::vector<std::byte>(view.begin(), view.end());
  };
  made.base = part(0, footer.base_bytes);
  made.p2p = part(footer.base_bytes, footer.p2p_bytes);
  made.more = part(std::size_t{footer.base_bytes} + footer.p2p_bytes, footer.more_bytes);
  made.process = {.boot_id = footer.boot_id,
                  .pid_namespace = footer.pid_namespace,
                  .start_time = footer.start_time,
                  .pid = footer.pid};
  made.note_lane = footer.note_lane;
  *out = std::move(made);
  return Status::ok();
}

}  // namespace kvt
