#include "addon/content_functions.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/content_job.h"
#include "addon/promise_worker.h"
#include "core/page_content.h"

namespace kvt {
namespace {

constexpr std::size_t kEntryRecord = 11;

// Kernels and a stream of the job's own, so that several jobs run beside each other.
Status open_kernels(const LeasedJob& leased, std::shared_ptr<const PageKernels>* kernels, CudaStream* stream) {
  Status status = leased.devices->kernels(leased.device, kernels);
  return status.is_ok() ? CudaStream::create((*kernels)->context(), StreamPriority::kHigh, stream) : status;
}

std::uint32_t to_u32(Napi::Env env, double value, const char* what) {
  const std::uint64_t whole = to_size(env, value, what);
  if (whole > std::numeric_limits<std::uint32_t>::max()) throw_argument(env, std::string(what) + " must be below 2^32");
  return static_cast<std::uint32_t>(whole);
}

ContentEntry read_entry(Napi::Env env, const double* at) {
  ContentEntry entry;
  entry.pool.base = to_size(env, at[0], "pool base");
  entry.pool.slot_bytes = to_size(env, at[1], "slotBytes");
  entry.pool.slot_stride = to_size(env, at[2], "slotStride");
  const std::uint32_t slot_count = to_u32(env, at[3], "slotCount");
  if (slot_count > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max())) {
    throw_argument(env, "slotCount must be below 2^31");
  }
  entry.pool.slot_count = static_cast<std::int32_t>(slot_count);
  entry.offset = to_size(env, at[4], "offset");
  entry.layer = to_u32(env, at[5], "layer");
  entry.role = to_u32(env, at[6], "role");
  entry.layout = at[7] == 0 ? ContentLayout::kHeadMajor : ContentLayout::kTokenMajor;
  entry.heads = to_u32(env, at[8], "heads");
  entry.first_head = to_u32(env, at[9], "firstHead");
  entry.token_bytes = to_size(env, at[10], "bytes of a token");
  return entry;
}

// Leases the pools of all entries, each pool once.
void lease_pools(Napi::Env env, const Environment& environment, LeasedJob* leased) {
  std::vector<SlotPool> seen;
  for (const ContentEntry& entry : leased->job.entries) {
    if (std::find(seen.begin(), seen.end(), entry.pool) != seen.end()) continue;
    seen.push_back(entry.pool);
    std::size_t size = 0;
    if (__builtin_mul_overflow(entry.pool.slot_stride, static_cast<std::size_t>(entry.pool.slot_count - 1), &size) ||
        __builtin_add_overflow(size, entry.pool.slot_bytes, &size)) {
      throw_argument(env, "a pool does not fit into the address space");
    }
    Region region;
    leased->leases.push_back(environment.lease(env, entry.pool.base, size, "page content", &region));
    const int device = region.kind == MemoryKind::kDevice ? region.device : -1;
    if (seen.size() > 1 && device != leased->device) {
      throw_argument(env, "page content: the pools of one job lie on several devices");
    }
    leased->device = device;
  }
  leased->devices = environment.desk().devices();
}

}  // namespace

std::shared_ptr<LeasedJob> read_job(const Napi::CallbackInfo& info, std::size_t from, const Environment& environment) {
  const Napi::Env env = info.Env();
  const auto entries = to_array<Napi::Float64Array>(info, from, napi_float64_array, "entries");
  const auto slots = to_array<Napi::Int32Array>(info, from + 1, napi_int32_array, "slots");
  const auto numbers = to_array<Napi::Float64Array>(info, from + 2, napi_float64_array, "job");
  const auto seeds = to_array<Napi::BigUint64Array>(info, from + 3, napi_biguint64_array, "tokenSeeds");
  if (entries.ElementLength() % kEntryRecord != 0 || numbers.ElementLength() != 3) {
    throw_argument(env, "a content job must be whole records");
  }
  auto leased = std::make_shared<LeasedJob>();
  ContentJob& job = leased->job;
  for (std::size_t at = 0; at < entries.ElementLength(); at += kEntryRecord) {
    job.entries.push_back(read_entry(env, entries.Data() + at));
  }
  job.slots.assign(slots.Data(), slots.Data() + slots.ElementLength());
  job.tokens_per_block = to_u32(env, numbers[0], "tokensPerBlock");
  job.first_block = to_size(env, numbers[1], "run.begin");
  job.token_begin = to_size(env, numbers[2], "tokenBegin");
  // Copied: JS may write its array while the pool's thread reads.
  job.seeds.assign(seeds.Data(), seeds.Data() + seeds.ElementLength());
  const Status status = check_content_job(job);
  if (!status.is_ok()) throw_status(env, status);
  lease_pools(env, environment, leased.get());
  return leased;
}

Napi::Value make_token_seeds(const Napi::CallbackInfo& info) {
  const auto tokens = to_array<Napi::Uint32Array>(info, 0, napi_uint32_array, "tokens");
  auto seeds = Napi::BigUint64Array::New(info.Env(), tokens.ElementLength());
  chain_token_seeds({tokens.Data(), tokens.ElementLength()}, {seeds.Data(), seeds.ElementLength()});
  return seeds;
}

Napi::Value start_fill(const Napi::CallbackInfo& info, const Environment& environment) {
  const auto leased = read_job(info, 0, environment);
  return PromiseWorker<std::uint64_t>::run(
      info.Env(),
      [leased](std::uint64_t* bytes) {
        Status status;
        if (leased->device < 0) {
          *bytes = fill_content(leased->job);
        } else {
          std::shared_ptr<const PageKernels> kernels;
          CudaStream stream;
          status = open_kernels(*leased, &kernels, &stream);
          if (status.is_ok()) status = kernels->fill(leased->job, stream, bytes);
        }
        leased->leases.clear();
        return status;
      },
      [](Napi::Env env, const std::uint64_t& bytes) {
        return Napi::Value(Napi::Number::New(env, static_cast<double>(bytes)));
      });
}

Napi::Value start_verify(const Napi::CallbackInfo& info, const Environment& environment) {
  const auto leased = read_job(info, 0, environment);
  return PromiseWorker<ContentCheck>::run(
      info.Env(),
      [leased](ContentCheck* check) {
        Status status;
        if (leased->device < 0) {
          *check = verify_content(leased->job);
        } else {
          std::shared_ptr<const PageKernels> kernels;
          CudaStream stream;
          status = open_kernels(*leased, &kernels, &stream);
          if (status.is_ok()) status = kernels->verify(leased->job, stream, check);
        }
        leased->leases.clear();
        return status;
      },
      [](Napi::Env env, const ContentCheck& check) {
        auto out = Napi::Float64Array::New(env, 5);
        out[0] = static_cast<double>(check.bytes_checked);
        out[1] = static_cast<double>(check.wrong_bytes);
        out[2] = check.first_wrong ? static_cast<double>(check.first_wrong->entry) : -1.0;
        out[3] = check.first_wrong ? check.first_wrong->head : 0.0;
        out[4] = check.first_wrong ? static_cast<double>(check.first_wrong->token) : 0.0;
        return Napi::Value(out);
      });
}

}  // namespace kvt
