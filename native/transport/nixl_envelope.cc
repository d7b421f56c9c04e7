#include "transport/nixl_envelope.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

namespace kvt::nixl {
namespace {

constexpr std::string_view kMagic = "KVTN";
constexpr std::uint16_t kVersion = 2;
constexpr std::uint32_t kProbeFlag = 256;
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kRegionBytes = 24;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxRegions = 4096;
constexpr std::size_t kMaxBlobBytes = std::size_t{16} << 20;

template <typename Integer>
void append(std::vector<std::byte>* out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    out->push_back(static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
  }
}

// The caller has checked that the bytes are there.
template <typename Integer>
Integer read(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<std::uint64_t>(std::to_integer<std::uint8_t>(bytes[offset + i])) << (8 * i);
  }
  return static_cast<Integer>(value);
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::byte value : bytes) {
    hash = (hash ^ std::to_integer<std::uint8_t>(value)) * 0x100000001b3ull;
  }
  return hash;
}

bool is_valid_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

Status refuse(const std::string& what) { return {StatusCode::kTransport, "NIXL agent metadata is malformed: " + what}; }

}  // namespace

std::optional<std::string_view> name_in_blob(std::span<const std::byte> blob) {
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  constexpr std::string_view kStart = "nixlSerDes|Agent";
  constexpr std::size_t kNameOffset = kStart.size() + sizeof(std::uint64_t);
  if (!text.starts_with(kStart) || text.size() < kNameOffset) return std::nullopt;
  const auto size = read<std::uint64_t>(blob, kStart.size());
  if (size > text.size() - kNameOffset) return std::nullopt;
  return text.substr(kNameOffset, size);
}

Status encode_envelope(const Envelope& envelope, std::vector<std::byte>* out) {
  if (!is_valid_name(envelope.name)) return refuse("agent name must be 1 to 255 bytes without control characters");
  if (envelope.regions.all().size() > kMaxRegions) return refuse("more than 4096 regions");
  if (envelope.blob.empty() || envelope.blob.size() > kMaxBlobBytes)
    return refuse("NIXL blob is empty or above 16 MiB");
  std::vector<std::byte> bytes;
  bytes.reserve(kHeaderBytes + envelope.name.size() + kRegionBytes * envelope.regions.all().size() +
                envelope.blob.size() + kChecksumBytes);
  for (const char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  append(&bytes, kVersion);
  append(&bytes, static_cast<std::uint16_t>(envelope.name.size()));
  append(&bytes, static_cast<std::uint32_t>(envelope.regions.all().size()));
  append(&bytes, static_cast<std::uint32_t>(envelope.blob.size()));
  for (const char c : envelope.name) bytes.push_back(static_cast<std::byte>(c));
  for (const Region& region : envelope.regions.all()) {
    append(&bytes, static_cast<std::uint64_t>(region.base));
    append(&bytes, static_cast<std::uint64_t>(region.size));
    const bool is_probe = std::any_of(envelope.probes.begin(), envelope.probes.end(),
                                      [&region](const Region& probe) { return probe.base == region.base; });
    append(&bytes, static_cast<std::uint32_t>(region.kind) + (is_probe ? kProbeFlag : 0));
    append(&bytes, static_cast<std::uint32_t>(region.device));
  }
  bytes.insert(bytes.end(), envelope.blob.begin(), envelope.blob.end());
  append(&bytes, checksum(bytes));
  *out = std::move(bytes);
  return Status::ok();
}

Status decode_envelope(std::span<const std::byte> bytes, Envelope* out) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) return refuse("too short");
  for (std::size_t i = 0; i < kMagic.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>(kMagic[i])) return refuse("not metadata of a nixl agent");
  }
  const auto version = read<std::uint16_t>(bytes, 4);
  if (version != kVersion) {
    return refuse("version " + std::to_string(version) + ", this build reads version " + std::to_string(kVersion));
  }
  const std::size_t name_size = read<std::uint16_t>(bytes, 6);
  const std::size_t region_count = read<std::uint32_t>(bytes, 8);
  const std::size_t blob_size = read<std::uint32_t>(bytes, 12);
  if (region_count > kMaxRegions) return refuse("more than 4096 regions");
  if (blob_size == 0 || blob_size > kMaxBlobBytes) return refuse("NIXL blob is empty or above 16 MiB");
  // The limits above keep this sum far from overflow.
  const std::size_t total = kHeaderBytes + name_size + kRegionBytes * region_count + blob_size + kChecksumBytes;
  if (bytes.size() != total) return refuse("length does not match its header");
  const std::span<const std::byte> content = bytes.first(total - kChecksumBytes);
  if (read<std::uint64_t>(bytes, content.size()) != checksum(content)) return refuse("checksum does not match");

  Envelope envelope;
  std::size_t offset = kHeaderBytes;
  for (const std::byte value : content.subspan(offset, name_size)) envelope.name.push_back(static_cast<char>(value));
  if (!is_valid_name(envelope.name)) return refuse("agent name must be 1 to 255 bytes without control characters");
  offset += name_size;
  for (std::size_t i = 0; i < region_count; ++i, offset += kRegionBytes) {
    const auto marked = read<std::uint32_t>(bytes, offset + 16);
    const std::uint32_t kind = marked & ~kProbeFlag;
    if (kind > static_cast<std::uint32_t>(MemoryKind::kDevice)) return refuse("unknown memory kind");
    const Region region{.base = read<std::uintptr_t>(bytes, offset),
                        .size = read<std::size_t>(bytes, offset + 8),
                        .kind = static_cast<MemoryKind>(kind),
                        .device = read<std::int32_t>(bytes, offset + 20)};
    if (region.base == 0 || !envelope.regions.add(region))
      return refuse("a region is empty, wraps around or overlaps another");
    if (marked != kind) envelope.probes.push_back(region);
  }
  const std::span<const std::byte> blob = content.subspan(offset);
  envelope.blob.assign(blob.begin(), blob.end());
  if (name_in_blob(envelope.blob).value_or(envelope.name) != envelope.name) return refuse("it names two agents");
  *out = std::move(envelope);
  return Status::ok();
}

}  // namespace kvt::nixl
