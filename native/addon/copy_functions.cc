#include "addon/copy_functions.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/promise_worker.h"

namespace kvt {
namespace {

struct CopyJob {
  std::uintptr_t source = 0;
  std::uintptr_t destination = 0;
  std::size_t page_bytes = 0;
  std::size_t slot_stride = 0;
  std::vector<std::int32_t> pairs;
  std::vector<MemoryLease> leases;
};

std::int64_t copy_pages(const CopyJob& job) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i + 1 < job.pairs.size(); i += 2) {
    const std::size_t from = static_cast<std::size_t>(job.pairs[i]) * job.slot_stride;
    const std::size_t to = static_cast<std::size_t>(job.pairs[i + 1]) * job.slot_stride;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
    std::memcpy(reinterpret_cast<void*>(job.destination + to), reinterpret_cast<const void*>(job.source + from),
                job.page_bytes);
  }
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Napi::Value start_plain_copy(const Napi::CallbackInfo& info, const Environment& environment) {
  const Napi::Env env = info.Env();
  auto job = std::make_shared<CopyJob>();
  job->source = to_size(env, to_number(info, 0, "srcBase"), "srcBase");
  job->destination = to_size(env, to_number(info, 1, "dstBase"), "dstBase");
  job->page_bytes = to_size(env, to_number(info, 2, "pageBytes"), "pageBytes");
  job->slot_stride = to_size(env, to_number(info, 3, "slotStride"), "slotStride");
  const auto pairs = to_array<Napi::Int32Array>(info, 4, napi_int32_array, "slotPairs");
  job->pairs.assign(pairs.Data(), pairs.Data() + pairs.ElementLength());
  if (job->page_bytes == 0 || job->page_bytes > job->slot_stride)
    throw_argument(env, "pageBytes must be 1 .. slotStride");
  if (job->pairs.size() % 2 != 0) throw_argument(env, "slotPairs must hold whole pairs");

  std::size_t furthest[2] = {0, 0};
  for (std::size_t i = 0; i < job->pairs.size(); ++i) {
    if (job->pairs[i] < 0) throw_argument(env, "slotPairs[" + std::to_string(i) + "] is negative");
    furthest[i % 2] = std::max(furthest[i % 2], static_cast<std::size_t>(job->pairs[i]));
  }
  if (job->pairs.empty()) job->page_bytes = 0;
  const auto lease = [&](std::uintptr_t base, std::size_t slot, const char* what) {
    std::size_t size = 0;
    if (__builtin_mul_overflow(slot, job->slot_stride, &size) || __builtin_add_overflow(size, job->page_bytes, &size)) {
      throw_argument(env, std::string(what) + ": the slots do not fit into the address space");
    }
    Region region;
    job->leases.push_back(environment.lease(env, base, size, what, &region));
    if (region.kind == MemoryKind::kDevice) {
      throw_argument(env, std::string(what) + " is device memory, and memcpy copies host memory only");
    }
  };
  lease(job->source, furthest[0], "srcBase");
  lease(job->destination, furthest[1], "dstBase");
  return PromiseWorker<std::int64_t>::run(
      env,
      [job](std::int64_t* nanos) {
        *nanos = copy_pages(*job);
        job->leases.clear();
        return Status::ok();
      },
      [](Napi::Env e, const std::int64_t& nanos) {
        return Napi::Value(Napi::Number::New(e, static_cast<double>(nanos)));
      });
}

}  // namespace kvt
