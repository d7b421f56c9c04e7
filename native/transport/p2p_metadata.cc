#include "transport/p2p_metadata.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/region_set.h"

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'K', 'V', 'T', 'P', '2', 'P', '\n', '\0'};
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kMaxNameBytes = 64;

struct RegionRecord {
  std::uint64_t base;
  std::uint64_t size;
  std::uint64_t offset;
  std::uint64_t allocation_size;
  std::uint8_t sharing;
  std::uint8_t zero[7];
  cuda::Uuid device;
  cuda::IpcMemoryHandle ipc;
};
static_assert(sizeof(RegionRecord) == 120);

struct Header {
  char magic[8];
  std::uint16_t version;
  std::uint16_t name_bytes;
  std::uint32_t region_count;
  std::array<std::byte, 16> boot_id;
  HostToken token;
};
static_assert(sizeof(Header) == kHeaderBytes);

Status refuse(const std::string& what) {
  return Status(StatusCode::kTransport, "this is not valid metadata of a p2p agent: " + what);
}

Status read_region(const RegionRecord& record, std::size_t index, RegionSet* seen, P2pRegion* out) {
  const auto fail = [index](const std::string& what) { return refuse("region " + std::to_string(index) + " " + what); };
  if (record.sharing > static_cast<std::uint8_t>(PoolSharing::kIpc)) return fail("is shared in an unknown way");
  if (!seen->add({record.base, record.size})) return fail("is empty, wraps or overlaps another");
  if (record.offset > record.allocation_size || record.size > record.allocation_size - record.offset) {
    return fail("leaves its allocation");
  }
  out->base = record.base;
  out->handle = {.sharing = static_cast<PoolSharing>(record.sharing),
                 .descriptor = -1,
                 .ipc = record.ipc,
                 .allocation_size = record.allocation_size,
                 .offset = record.offset,
                 .size = record.size,
                 .device = record.device};
  return Status::ok();
}

}  // namespace

std::vector<std::byte> encode_p2p_metadata(const P2pMetadata& metadata) {
  const std::size_t regions_at = kHeaderBytes + metadata.socket_name.size();
  std::vector<std::byte> out(regions_at + metadata.regions.size() * sizeof(RegionRecord));
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.name_bytes = static_cast<std::uint16_t>(metadata.socket_name.size());
  header.region_count = static_cast<std::uint32_t>(metadata.regions.size());
  header.boot_id = metadata.boot_id;
  header.token = metadata.token;
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + kHeaderBytes, metadata.socket_name.data(), metadata.socket_name.size());
  for (std::size_t i = 0; i < metadata.regions.size(); ++i) {
    const PoolHandle& handle = metadata.regions[i].handle;
    RegionRecord record{};
    record.base = metadata.regions[i].base;
    record.size = handle.size;
    record.offset = handle.offset;
    record.allocation_size = handle.allocation_size;
    record.sharing = static_cast<std::uint8_t>(handle.sharing);
    record.device = handle.device;
    record.ipc = handle.ipc;
    std::memcpy(out.data() + regions_at + i * sizeof record, &record, sizeof record);
  }
  return out;
}

Status decode_p2p_metadata(std::span<const std::byte> bytes, P2pMetadata* out) {
  if (bytes.size() < kHeaderBytes) return refuse("it has " + std::to_string(bytes.size()) + " bytes");
  Header header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return refuse("it does not begin with KVTP2P");
  if (header.version != kVersion) return refuse("version " + std::to_string(header.version) + ", this agent speaks 1");
  if (header.name_bytes == 0 || header.name_bytes > kMaxNameBytes) return refuse("bad socket name length");
  if (header.region_count > kMaxP2pRegions) return refuse(std::to_string(header.region_count) + " regions");
  const std::size_t regions_at = kHeaderBytes + header.name_bytes;
  if (bytes.size() != regions_at + std::size_t{header.region_count} * sizeof(RegionRecord)) {
    return refuse("its length does not fit its counts");
  }
  P2pMetadata metadata;
  metadata.boot_id = header.boot_id;
  metadata.token = header.token;
  metadata.socket_name.assign(reinterpret_cast<const char*>(bytes.data()) + kHeaderBytes, header.name_bytes);
  RegionSet seen;
  for (std::size_t i = 0; i < header.region_count; ++i) {
    RegionRecord record{};
    std::memcpy(&record, bytes.data() + regions_at + i * sizeof record, sizeof record);
    P2pRegion region;
    Status status = read_region(record, i, &seen, &region);
    if (!status.is_ok()) return status;
    metadata.regions.push_back(region);
  }
  *out = std::move(metadata);
  return Status::ok();
}

}  // namespace kvt
