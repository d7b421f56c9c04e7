#include "addon/native_gemm.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/content_job.h"
#include "addon/promise_worker.h"
#include "device/cuda_event.h"

namespace kvt {
namespace {

struct Nothing {};

struct Opened {
  std::string library;
  int version = 0;
};

}  // namespace

// One forward: everything that must outlive its queue.
struct NativeGemm::Step {
  std::uint64_t chunk = 0;
  std::uint64_t before = 0;
  std::vector<std::shared_ptr<LeasedJob>> jobs;
  std::vector<DeviceBuffer> uploaded;
  std::uint64_t bytes = 0;
  CudaEvent mark;   // what submissions wait for
  CudaEvent ended;  // what this object waits for
};

Napi::Function NativeGemm::define(Napi::Env env) {
  return DefineClass(env, "GemmWorkload",
                     {InstanceMethod<&NativeGemm::open>("open"), InstanceMethod<&NativeGemm::forward>("forward"),
                      InstanceMethod<&NativeGemm::close>("close")});
}

NativeGemm::NativeGemm(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  const Napi::Env env = info.Env();
  const std::uint64_t ordinal = to_size(env, to_number(info, 0, "device"), "device");
  if (ordinal > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw_argument(env, "device must be a GPU's number");
  }
  shared_->ordinal = static_cast<int>(ordinal);
  shared_->library = to_text(info, 1, "library");
  const auto numbers = to_array<Napi::Float64Array>(info, 2, napi_float64_array, "shape");
  GemmShape& shape = shared_->shape;
  const std::array<std::uint64_t*, 8> fields = {&shape.layers,    &shape.hidden,     &shape.heads,
                                                &shape.kv_heads,  &shape.head_dim,   &shape.intermediate,
                                                &shape.max_chunk, &shape.max_context};
  if (numbers.ElementLength() != fields.size()) throw_argument(env, "shape must have eight numbers");
  for (std::size_t i = 0; i < fields.size(); ++i) *fields[i] = to_size(env, numbers[i], "shape");
  shared_->devices = environment_of(env)->desk().devices();
}

Napi::Value NativeGemm::open(const Napi::CallbackInfo& info) {
  return PromiseWorker<Opened>::run(
      info.Env(),
      [shared = shared_](Opened* opened) {
        const std::lock_guard lock(shared->mutex);
        if (shared->workload != nullptr) return Status(StatusCode::kState, "the workload is open already");
        std::shared_ptr<const CudaContext> context;
        Status status = shared->devices->get(shared->ordinal, &context);
        if (status.is_ok()) {
          shared->buffers.emplace(context);
          status = GemmWorkload::create(std::move(context), shared->shape, shared->library, &shared->workload);
        }
        if (status.is_ok()) *opened = {shared->workload->library(), shared->workload->version()};
        return status;
      },
      [](Napi::Env env, const Opened& opened) {
        auto out = Napi::Object::New(env);
        out["library"] = opened.library;
        out["version"] = opened.version;
        return Napi::Value(out);
      });
}

Status NativeGemm::run_step(Shared* shared, Step* step) {
  const std::lock_guard lock(shared->mutex);
  if (shared->workload == nullptr) return Status(StatusCode::kState, "the workload is not open");
  GemmWorkload& workload = *shared->workload;
  std::shared_ptr<const PageKernels> kernels;
  Status status = shared->devices->kernels(shared->ordinal, &kernels);
  if (!status.is_ok()) return status;
  for (CudaEvent* event : {&step->mark, &step->ended}) {
    status = CudaEvent::create(kernels->context(), EventTiming::kOff, event);
    if (!status.is_ok()) return status;
  }
  status = workload.enqueue(step->chunk, step->before);
  for (const auto& job : step->jobs) {
    if (!status.is_ok()) break;
    std::uint64_t bytes = 0;
    DeviceBuffer buffer;
    {
      const std::lock_guard buffers_lock(shared->buffers_mutex);
      status = shared->buffers->take(PageKernels::upload_bytes(job->job), &buffer);
    }
    if (!status.is_ok()) break;
    status = kernels->enqueue_fill(job->job, workload.stream(), buffer, &bytes);
    step->uploaded.push_back(std::move(buffer));
    step->bytes += bytes;
  }
  if (status.is_ok()) status = step->mark.record(workload.stream());
  if (status.is_ok()) status = step->ended.record(workload.stream());
  // What was queued before the failure writes nothing any more when the failure is told.
  if (!status.is_ok()) (void)workload.stream().synchronize();
  return status;
}

Napi::Value NativeGemm::forward(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Environment* environment = environment_of(env);
  auto step = std::make_shared<Step>();
  step->chunk = to_size(env, to_number(info, 0, "chunk"), "chunk");
  step->before = to_size(env, to_number(info, 1, "before"), "before");
  for (std::size_t at = 2; at < info.Length(); at += kJobArguments) {
    step->jobs.push_back(read_job(info, at, *environment));
    if (step->jobs.back()->device != shared_->ordinal) throw_argument(env, "the pages lie on another GPU");
  }
  return PromiseWorker<Nothing>::run(
      env,
      [shared = shared_, step](Nothing*) {
        Status status = run_step(shared.get(), step.get());
        if (!status.is_ok()) step->jobs.clear();
        return status;
      },
      [shared = shared_, step, environment](Napi::Env e, const Nothing&) {
        auto out = Napi::Object::New(e);
        out["event"] = environment->desk().keep_event(std::move(step->mark));
        out["bytes"] = static_cast<double>(step->bytes);
        out["done"] = PromiseWorker<Nothing>::run(
            e,
            [shared, step](Nothing*) {
              Status status = step->ended.synchronize();
              const std::lock_guard lock(shared->buffers_mutex);
              for (DeviceBuffer& buffer : step->uploaded) shared->buffers->give_back(std::move(buffer));
              step->uploaded.clear();
              step->jobs.clear();
              return status;
            },
            [](Napi::Env e2, const Nothing&) { return e2.Undefined(); });
        return Napi::Value(out);
      });
}

Napi::Value NativeGemm::close(const Napi::CallbackInfo& info) {
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [shared = shared_](Nothing*) {
        const std::lock_guard lock(shared->mutex);
        shared->workload.reset();
        return Status::ok();
      },
      [](Napi::Env env, const Nothing&) { return env.Undefined(); });
}

}  // namespace kvt
