#include "transport/host_metadata.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'K', 'V', 'T', 'H', 'O', 'S', 'T', '\n'};
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kMaxNameBytes = 64;
constexpr std::size_t kRegionBytes = 16;

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

Status refuse(const std::string& what) {
  return Status(StatusCode::kTransport, "this is not valid metadata of a host agent: " + what);
}

}  // namespace

std::vector<std::byte> encode_host_metadata(const HostMetadata& metadata) {
  const std::size_t regions_at = kHeaderBytes + metadata.socket_name.size();
  std::vector<std::byte> out(regions_at + metadata.regions.size() * kRegionBytes);
  write_at(&out, 0, kMagic);
  write_at(&out, 8, kVersion);
  write_at(&out, 10, static_cast<std::uint16_t>(metadata.socket_name.size()));
  write_at(&out, 12, static_cast<std::uint32_t>(metadata.regions.size()));
  write_at(&out, 16, metadata.boot_id);
  write_at(&out, 32, metadata.token);
  std::memcpy(out.data() + kHeaderBytes, metadata.socket_name.data(), metadata.socket_name.size());
  for (std::size_t i = 0; i < metadata.regions.size(); ++i) {
    write_at(&out, regions_at + i * kRegionBytes, static_cast<std::uint64_t>(metadata.regions[i].base));
    write_at(&out, regions_at + i * kRegionBytes + 8, static_cast<std::uint64_t>(metadata.regions[i].size));
  }
  return out;
}

Status decode_host_metadata(std::span<const std::byte> bytes, HostMetadata* out) {
  if (bytes.size() < kHeaderBytes) return refuse("it has " + std::to_string(bytes.size()) + " bytes");
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return refuse("it does not begin with KVTHOST");
  const auto version = read_at<std::uint16_t>(bytes, 8);
  if (version != kVersion) return refuse("version " + std::to_string(version) + ", this agent speaks 1");
  const std::size_t name_bytes = read_at<std::uint16_t>(bytes, 10);
  const std::size_t region_count = read_at<std::uint32_t>(bytes, 12);
  if (name_bytes == 0 || name_bytes > kMaxNameBytes) return refuse("bad socket name length");
  if (region_count > kMaxHostRegions) return refuse(std::to_string(region_count) + " regions");
  if (bytes.size() != kHeaderBytes + name_bytes + region_count * kRegionBytes)
    return refuse("its length does not fit its counts");

  HostMetadata metadata;
  metadata.boot_id = read_at<std::array<std::byte, 16>>(bytes, 16);
  metadata.token = read_at<HostToken>(bytes, 32);
  metadata.socket_name.assign(reinterpret_cast<const char*>(bytes.data()) + kHeaderBytes, name_bytes);
  RegionSet regions;
  for (std::size_t i = 0; i < region_count; ++i) {
    const std::size_t at = kHeaderBytes + name_bytes + i * kRegionBytes;
    const MemoryRange range{read_at<std::uint64_t>(bytes, at), read_at<std::uint64_t>(bytes, at + 8)};
    if (!regions.add(range)) return refuse("region " + std::to_string(i) + " is empty, wraps or overlaps another");
  }
  metadata.regions = regions.ranges();
  *out = std::move(metadata);
  return Status::ok();
}

Status read_boot_id(std::array<std::byte, 16>* out) {
  std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file == nullptr) return Status(StatusCode::kCapability, "cannot read the boot id; mount /proc");
  std::size_t digits = 0;
  for (int c = std::fgetc(file); c != EOF && digits < 32; c = std::fgetc(file)) {
    unsigned nibble = 0;
    if (c >= '0' && c <= '9') {
      nibble = static_cast<unsigned>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      nibble = static_cast<unsigned>(c - 'a') + 10;
    } else {
      continue;
    }
    const auto shifted = static_cast<std::byte>(digits % 2 == 0 ? nibble << 4U : nibble);
    (*out)[digits / 2] = digits % 2 == 0 ? shifted : ((*out)[digits / 2] | shifted);
    ++digits;
  }
  std::fclose(file);
  if (digits != 32) return Status(StatusCode::kCapability, "the boot id in /proc is malformed");
  return Status::ok();
}

}  // namespace kvt
