#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/device_buffer.h"
#include "device/page_kernels.h"

namespace kvt {
namespace {

// Fill and verify are asked for by tests and by the engine between two forwards: they may take the whole device.
constexpr unsigned kBlocksPerMultiprocessor = 8;

std::size_t rounded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

// Where the parts of a job lie in one buffer: result | entries | slots | seeds.
struct JobLayout {
  explicit JobLayout(const ContentJob& job)
      : entries_at(rounded(sizeof(ContentResult))),
        slots_at(entries_at + rounded(job.entries.size() * sizeof(DeviceContentEntry))),
        seeds_at(slots_at + rounded(job.slots.size() * sizeof(std::int32_t))),
        size(seeds_at + rounded(job.seeds.size() * sizeof(std::uint64_t))) {}

  std::size_t entries_at;
  std::size_t slots_at;
  std::size_t seeds_at;
  std::size_t size;
};

Status upload_job(const ContentJob& job, const CudaStream& stream, const DeviceBuffer& buffer, ContentArguments* out) {
  const JobLayout layout(job);
  std::byte* host = buffer.host().data();
  const ContentResult empty{0, 0, ~0ULL};
  std::memcpy(host, &empty, sizeof empty);
  for (std::size_t i = 0; i < job.entries.size(); ++i) {
    const ContentEntry& entry = job.entries[i];
    DeviceContentEntry next{};
    next.base = entry.pool.base + entry.offset;
    next.slot_stride = entry.pool.slot_stride;
    next.token_bytes = entry.token_bytes;
    next.layer = entry.layer;
    next.role = entry.role;
    next.heads = entry.heads;
    next.first_head = entry.first_head;
    next.is_token_major = entry.layout == ContentLayout::kTokenMajor ? 1 : 0;
    std::memcpy(host + layout.entries_at + i * sizeof next, &next, sizeof next);
  }
  if (!job.slots.empty()) {
    std::memcpy(host + layout.slots_at, job.slots.data(), job.slots.size() * sizeof(std::int32_t));
  }
  if (!job.seeds.empty()) {
    std::memcpy(host + layout.seeds_at, job.seeds.data(), job.seeds.size() * sizeof(std::uint64_t));
  }
  const std::uintptr_t device = buffer.device();
  out->entries = device + layout.entries_at;
  out->slots = device + layout.slots_at;
  out->seeds = device + layout.seeds_at;
  out->result = device;
  out->first_block = job.first_block;
  out->token_begin = job.token_begin;
  out->token_count = job.seeds.size();
  out->entry_count = static_cast<unsigned>(job.entries.size());
  out->slot_count = static_cast<unsigned>(job.slots.size());
  out->tokens_per_block = job.tokens_per_block;
  return buffer.upload(layout.size, stream);
}

WrongPlace place_of(const ContentJob& job, std::uint64_t index) {
  for (std::size_t e = 0; e < job.entries.size(); ++e) {
    const ContentEntry& entry = job.entries[e];
    const std::uint64_t places = std::uint64_t{entry.heads} * job.tokens_per_block;
    if (index >= places * job.slots.size()) {
      index -= places * job.slots.size();
      continue;
    }
    const std::uint64_t block = index / places;
    const std::uint64_t place = index % places;
    const bool is_token_major = entry.layout == ContentLayout::kTokenMajor;
    const std::uint64_t head = is_token_major ? place % entry.heads : place / job.tokens_per_block;
    const std::uint64_t token = is_token_major ? place / entry.heads : place % job.tokens_per_block;
    return {e, static_cast<std::uint32_t>(entry.first_head + head),
            (job.first_block + block) * job.tokens_per_block + token};
  }
  return {};
}

std::uint64_t bytes_of(const ContentJob& job) {
  std::uint64_t token_bytes = 0;
  for (const ContentEntry& entry : job.entries) token_bytes += std::uint64_t{entry.heads} * entry.token_bytes;
  std::uint64_t bytes = 0;
  for (std::size_t b = 0; b < job.slots.size(); ++b) {
    if (job.slots[b] < 0) continue;
    const std::uint64_t begin = (job.first_block + b) * job.tokens_per_block;
    const std::uint64_t low = std::max(begin, job.token_begin);
    const std::uint64_t high = std::min(begin + job.tokens_per_block, job.token_begin + job.seeds.size());
    if (low < high) bytes += (high - low) * token_bytes;
  }
  return bytes;
}

}  // namespace

std::size_t PageKernels::upload_bytes(const ContentJob& job) { return JobLayout(job).size; }

Status PageKernels::enqueue_fill(const ContentJob& job, const CudaStream& stream, const DeviceBuffer& buffer,
                                 std::uint64_t* bytes) const {
  ContentArguments arguments{};
  Status status = upload_job(job, stream, buffer, &arguments);
  if (!status.is_ok()) return status;
  const auto blocks = static_cast<unsigned>(context_->multiprocessor_count()) * kBlocksPerMultiprocessor;
  *bytes = bytes_of(job);
  return launch(fill_, blocks, kContentThreads, 0, stream, &arguments);
}

Status PageKernels::fill(const ContentJob& job, const CudaStream& stream, std::uint64_t* bytes) const {
  DeviceBuffer buffer;
  Status status = DeviceBuffer::create(context_, upload_bytes(job), &buffer);
  if (status.is_ok()) status = enqueue_fill(job, stream, buffer, bytes);
  return status.is_ok() ? stream.synchronize() : status;
}

Status PageKernels::verify(const ContentJob& job, const CudaStream& stream, ContentCheck* out) const {
  DeviceBuffer buffer;
  Status status = DeviceBuffer::create(context_, upload_bytes(job), &buffer);
  if (!status.is_ok()) return status;
  ContentArguments arguments{};
  status = upload_job(job, stream, buffer, &arguments);
  if (!status.is_ok()) return status;
  const auto blocks = static_cast<unsigned>(context_->multiprocessor_count()) * kBlocksPerMultiprocessor;
  status = launch(verify_, blocks, kContentThreads, 0, stream, &arguments);
  if (!status.is_ok()) return status;
  status = buffer.download(sizeof(ContentResult), stream);
  if (!status.is_ok()) return status;
  status = stream.synchronize();
  if (!status.is_ok()) return status;
  ContentResult result{};
  std::memcpy(&result, buffer.host().data(), sizeof result);
  out->bytes_checked = result.bytes_checked;
  out->wrong_bytes = result.wrong_bytes;
  out->first_wrong.reset();
  if (result.wrong_bytes != 0) out->first_wrong = place_of(job, result.first_wrong);
  return Status::ok();
}

}  // namespace kvt
