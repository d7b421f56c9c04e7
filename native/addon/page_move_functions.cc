#include "addon/page_move_functions.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/promise_worker.h"

namespace kvt {
namespace {

constexpr std::size_t kNumbersPerRange = 2;
constexpr std::size_t kNumbersPerMove = 5;
constexpr int kNoDevice = -1;

struct Place {
  std::uintptr_t address = 0;
  bool is_device = false;
};

struct Move {
  Place from;
  Place to;
  std::size_t bytes = 0;
};

struct MoveJob {
  std::vector<Move> moves;
  std::vector<MemoryLease> leases;
  // The one GPU whose memory is named, or kNoDevice.
  int device = kNoDevice;
  std::shared_ptr<OpenDevices> devices;
};

struct Nothing {};

void copy_on_host(const Move& move) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
  std::memmove(reinterpret_cast<void*>(move.to.address), reinterpret_cast<const void*>(move.from.address), move.bytes);
}

Status enqueue(const CudaApi& api, const CudaStream& stream, const Move& move) {
  const auto& [from, to, bytes] = move;
  if (from.is_device && to.is_device) {
    return api.check(api.cuMemcpyDtoDAsync(to.address, from.address, bytes, stream.handle()), "cuMemcpyDtoDAsync");
  }
  // NOLINTBEGIN(performance-no-int-to-ptr): pools are known by address
  if (from.is_device) {
    return api.check(api.cuMemcpyDtoHAsync(reinterpret_cast<void*>(to.address), from.address, bytes, stream.handle()),
                     "cuMemcpyDtoHAsync");
  }
  if (to.is_device) {
    return api.check(
        api.cuMemcpyHtoDAsync(to.address, reinterpret_cast<const void*>(from.address), bytes, stream.handle()),
        "cuMemcpyHtoDAsync");
  }
  // NOLINTEND(performance-no-int-to-ptr)
  // What was enqueued before comes first.
  const Status status = stream.synchronize();
  if (status.is_ok()) copy_on_host(move);
  return status;
}

Status run_on_device(const MoveJob& job) {
  std::shared_ptr<const CudaContext> context;
  Status status = job.devices->get(job.device, &context);
  if (!status.is_ok()) return status;
  CudaStream stream;
  status = CudaStream::create(context, StreamPriority::kLow, &stream);
  if (!status.is_ok()) return status;
  const CurrentContext current(*context);
  status = current.status();
  for (const Move& move : job.moves) {
    if (!status.is_ok()) break;
    status = enqueue(context->api(), stream, move);
  }
  // Also after a failure: what was enqueued before it still copies.
  const Status drained = stream.synchronize();
  return status.is_ok() ? drained : status;
}

Status run_moves(MoveJob* job) {
  Status status;
  if (job->device != kNoDevice) {
    status = run_on_device(*job);
  } else {
    for (const Move& move : job->moves) copy_on_host(move);
  }
  job->leases.clear();
  return status;
}

struct Range {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  bool is_device = false;
};

std::vector<Range> lease_ranges(Napi::Env env, const Environment& environment, const Napi::Float64Array& numbers,
                                MoveJob* job) {
  if (numbers.ElementLength() % kNumbersPerRange != 0) throw_argument(env, "ranges must hold whole records");
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < numbers.ElementLength(); i += kNumbersPerRange) {
    Range range{.base = to_size(env, numbers[i], "range base"), .size = to_size(env, numbers[i + 1], "range bytes")};
    Region region;
    job->leases.push_back(environment.lease(env, range.base, range.size, "the pages' memory", &region));
    range.is_device = region.kind == MemoryKind::kDevice;
    if (range.is_device) {
      if (job->device != kNoDevice && job->device != region.device) {
        throw_argument(env, "pages of two GPUs cannot be moved together");
      }
      job->device = region.device;
    }
    ranges.push_back(range);
  }
  return ranges;
}

Place place_in(Napi::Env env, const std::vector<Range>& ranges, const double* numbers, std::size_t bytes) {
  const std::size_t index = to_size(env, numbers[0], "range");
  const std::size_t offset = to_size(env, numbers[1], "offset");
  if (index >= ranges.size())
    throw_argument(env, "a move names range " + std::to_string(index) + ", which is not there");
  const Range& range = ranges[index];
  if (offset > range.size || bytes > range.size - offset) throw_argument(env, "a move leaves its range");
  return {range.base + offset, range.is_device};
}

}  // namespace

Napi::Value start_page_moves(const Napi::CallbackInfo& info, const Environment& environment) {
  const Napi::Env env = info.Env();
  const auto range_numbers = to_array<Napi::Float64Array>(info, 0, napi_float64_array, "ranges");
  const auto numbers = to_array<Napi::Float64Array>(info, 1, napi_float64_array, "moves");
  auto job = std::make_shared<MoveJob>();
  job->devices = environment.desk().devices();
  const std::vector<Range> ranges = lease_ranges(env, environment, range_numbers, job.get());
  if (numbers.ElementLength() % kNumbersPerMove != 0) throw_argument(env, "moves must hold whole records");
  job->moves.reserve(numbers.ElementLength() / kNumbersPerMove);
  for (std::size_t i = 0; i < numbers.ElementLength(); i += kNumbersPerMove) {
    const double* record = numbers.Data() + i;
    const std::size_t bytes = to_size(env, record[4], "bytes");
    const Place from = place_in(env, ranges, record, bytes);
    const Place to = place_in(env, ranges, record + 2, bytes);
    if (bytes > 0) job->moves.push_back({from, to, bytes});
  }
  return PromiseWorker<Nothing>::run(
      env, [job](Nothing*) { return run_moves(job.get()); }, [](Napi::Env e, const Nothing&) { return e.Undefined(); });
}

}  // namespace kvt
