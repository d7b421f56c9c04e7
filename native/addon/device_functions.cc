#include "addon/device_functions.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/promise_worker.h"

namespace kvt {
namespace {

int to_ordinal(const Napi::CallbackInfo& info, std::size_t index) {
  const std::uint64_t value = to_size(info.Env(), to_number(info, index, "device"), "device");
  if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw_argument(info.Env(), "device must be a GPU's number");
  }
  return static_cast<int>(value);
}

std::uint32_t to_event(const Napi::CallbackInfo& info) {
  return static_cast<std::uint32_t>(to_size(info.Env(), to_number(info, 0, "event"), "event"));
}

struct Nothing {};

// A copy between JS and a pool; `bytes` is what was read or is to be written.
struct MemoryJob {
  Region region;
  std::uintptr_t address = 0;
  std::vector<std::byte> bytes;
  MemoryLease lease;
  std::shared_ptr<OpenDevices> devices;
};

enum class Direction : std::uint8_t { kRead, kWrite };

Status copy_device(MemoryJob* job, Direction direction) {
  std::shared_ptr<const CudaContext> context;
  Status status = job->devices->get(job->region.device, &context);
  if (!status.is_ok()) return status;
  CudaStream stream;
  status = CudaStream::create(context, StreamPriority::kLow, &stream);
  if (!status.is_ok()) return status;
  const CudaApi& api = context->api();
  const CurrentContext current(*context);
  if (!current.status().is_ok()) return current.status();
  const std::size_t size = job->bytes.size();
  status = direction == Direction::kRead
               ? api.check(api.cuMemcpyDtoHAsync(job->bytes.data(), job->address, size, stream.handle()),
                           "cuMemcpyDtoHAsync")
               : api.check(api.cuMemcpyHtoDAsync(job->address, job->bytes.data(), size, stream.handle()),
                           "cuMemcpyHtoDAsync");
  return status.is_ok() ? stream.synchronize() : status;
}

Status run_copy(MemoryJob* job, Direction direction) {
  Status status;
  const std::size_t size = job->bytes.size();
  if (size > 0 && job->region.kind == MemoryKind::kDevice) {
    status = copy_device(job, direction);
  } else if (size > 0) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
    void* memory = reinterpret_cast<void*>(job->address);
    if (direction == Direction::kRead) {
      std::memcpy(job->bytes.data(), memory, size);
    } else {
      std::memcpy(memory, job->bytes.data(), size);
    }
  }
  job->lease = MemoryLease();
  return status;
}

std::shared_ptr<MemoryJob> make_job(Napi::Env env, const Environment& environment, std::uintptr_t address,
                                    std::size_t size) {
  auto job = std::make_shared<MemoryJob>();
  job->address = address;
  job->lease = environment.lease(env, address, size, "memory", &job->region);
  job->devices = environment.desk().devices();
  job->bytes.resize(size);
  return job;
}

}  // namespace

Napi::Value open_device(const Napi::CallbackInfo& info, Environment* environment) {
  const int ordinal = to_ordinal(info, 0);
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [ordinal, devices = environment->desk().devices()](Nothing*) {
        std::shared_ptr<const CudaContext> context;
        return devices->get(ordinal, &context);
      },
      [](Napi::Env env, const Nothing&) { return env.Undefined(); });
}

Napi::Value create_stream(const Napi::CallbackInfo& info, Environment* environment) {
  const int ordinal = to_ordinal(info, 0);
  const auto priority = to_number(info, 1, "priority") == 0 ? StreamPriority::kLow : StreamPriority::kHigh;
  auto made = std::make_shared<CudaStream>();
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [ordinal, priority, made, devices = environment->desk().devices()](Nothing*) {
        std::shared_ptr<const CudaContext> context;
        Status status = devices->get(ordinal, &context);
        return status.is_ok() ? CudaStream::create(std::move(context), priority, made.get()) : status;
      },
      [made, environment](Napi::Env env, const Nothing&) {
        const auto handle = static_cast<double>(reinterpret_cast<std::uint64_t>(made->handle()));
        environment->desk().keep_stream(std::move(*made));
        return Napi::Value(Napi::Number::New(env, handle));
      });
}

void close_stream(const Napi::CallbackInfo& info, Environment* environment) {
  environment->desk().drop_stream(to_size(info.Env(), to_number(info, 0, "stream"), "stream"));
}

void clear_memory(const Napi::CallbackInfo& info, Environment* environment) {
  const Napi::Env env = info.Env();
  const std::uint64_t handle = to_size(env, to_number(info, 0, "stream"), "stream");
  const std::uint64_t address = to_size(env, to_number(info, 1, "address"), "address");
  const std::uint64_t length = to_size(env, to_number(info, 2, "length"), "length");
  const std::uint64_t rounds = to_size(env, to_number(info, 3, "rounds"), "rounds");
  Region region;
  const MemoryLease held = environment->lease(env, address, length, "clear", &region);
  const std::shared_ptr<const CudaContext> context = environment->desk().devices()->find(region.device);
  if (region.kind != MemoryKind::kDevice || context == nullptr) {
    throw_argument(env, "clear: the address is no memory of a GPU that was opened in this thread");
  }
  const CurrentContext current(*context);
  Status status = current.status();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): streams are known by number
  auto* const stream = reinterpret_cast<cuda::Stream>(handle);
  for (std::uint64_t i = 0; i < rounds && status.is_ok(); ++i) {
    status = context->api().check(context->api().cuMemsetD8Async(address, 0, length, stream), "cuMemsetD8Async");
  }
  if (!status.is_ok()) throw_status(env, status);
}

Napi::Value record_device_event(const Napi::CallbackInfo& info, Environment* environment) {
  const Napi::Env env = info.Env();
  std::uint32_t event = 0;
  const Status status =
      environment->desk().record(to_ordinal(info, 0), to_size(env, to_number(info, 1, "stream"), "stream"), &event);
  if (!status.is_ok()) throw_status(env, status);
  return Napi::Number::New(env, event);
}

Napi::Value query_device_event(const Napi::CallbackInfo& info, Environment* environment) {
  const Napi::Env env = info.Env();
  const auto event = environment->desk().find_event(to_event(info));
  if (event == nullptr) throw_argument(env, "unknown event");
  const EventState state = event->state();
  if (state == EventState::kFailed) return Napi::String::New(env, event->failure().message());
  return Napi::Number::New(env, static_cast<double>(state));
}

void fail_device_event(const Napi::CallbackInfo& info, Environment* environment) {
  std::string message = to_text(info, 1, "message");
  const auto event = environment->desk().find_event(to_event(info));
  if (event == nullptr) return;
  event->fail(std::move(message));
  environment->tell_events_changed();
}

void release_device_event(const Napi::CallbackInfo& info, Environment* environment) {
  environment->desk().drop_event(to_event(info));
}

Napi::Value read_memory(const Napi::CallbackInfo& info, const Environment& environment) {
  const Napi::Env env = info.Env();
  const std::uint64_t address = to_size(env, to_number(info, 0, "address"), "address");
  const std::uint64_t length = to_size(env, to_number(info, 1, "length"), "length");
  const auto job = make_job(env, environment, address, length);
  return PromiseWorker<Nothing>::run(
      env, [job](Nothing*) { return run_copy(job.get(), Direction::kRead); },
      [job](Napi::Env e, const Nothing&) {
        auto out = Napi::Uint8Array::New(e, job->bytes.size());
        if (!job->bytes.empty()) std::memcpy(out.Data(), job->bytes.data(), job->bytes.size());
        return Napi::Value(out);
      });
}

Napi::Value write_memory(const Napi::CallbackInfo& info, const Environment& environment) {
  const Napi::Env env = info.Env();
  const std::uint64_t address = to_size(env, to_number(info, 0, "address"), "address");
  const auto bytes = to_array<Napi::Uint8Array>(info, 1, napi_uint8_array, "bytes");
  const auto job = make_job(env, environment, address, bytes.ByteLength());
  // Copied: JS may write its array while the pool's thread reads.
  if (bytes.ByteLength() > 0) std::memcpy(job->bytes.data(), bytes.Data(), bytes.ByteLength());
  return PromiseWorker<Nothing>::run(
      env, [job](Nothing*) { return run_copy(job.get(), Direction::kWrite); },
      [](Napi::Env e, const Nothing&) { return e.Undefined(); });
}

}  // namespace kvt
