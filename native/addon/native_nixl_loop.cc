#include "addon/native_nixl_loop.h"

#include <cstring>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/environment.h"
#include "addon/promise_worker.h"

namespace kvt {
namespace {

struct Nothing {};

}  // namespace

Napi::Function NativeNixlLoop::define(Napi::Env env) {
  return DefineClass(env, "NixlLoop",
                     {InstanceMethod<&NativeNixlLoop::open>("open"), InstanceMethod<&NativeNixlLoop::time>("time"),
                      InstanceMethod<&NativeNixlLoop::close>("close")});
}

NativeNixlLoop::NativeNixlLoop(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  shared_->options.agent_name = to_text(info, 0, "name");
  shared_->options.library_path = to_text(info, 1, "nixlLibrary");
  shared_->options.package_tree = to_text(info, 2, "nixlPackageTree");
  shared_->devices = environment_of(info.Env())->desk().devices();
  // On this thread, because JavaScript writes the environment here too.
  prepare_process_for_nixl();
}

Napi::Value NativeNixlLoop::open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::uint64_t base = to_size(env, to_number(info, 0, "base"), "base");
  const std::uint64_t size = to_size(env, to_number(info, 1, "sizeBytes"), "sizeBytes");
  const auto metadata = to_array<Napi::Uint8Array>(info, 2, napi_uint8_array, "metadata");
  std::vector<std::byte> peer(metadata.ByteLength());
  if (!peer.empty()) std::memcpy(peer.data(), metadata.Data(), peer.size());
  Region source;
  shared_->source = environment_of(env)->lease(env, base, size, "base", &source);
  source.base = base;
  source.size = size;
  return PromiseWorker<Nothing>::run(
      env,
      [shared = shared_, source, peer = std::move(peer)](Nothing*) {
        const std::lock_guard lock(shared->mutex);
        std::shared_ptr<const CudaContext> context;
        Status status = Status::ok();
        if (source.kind == MemoryKind::kDevice) status = shared->devices->get(source.device, &context);
        if (status.is_ok()) status = shared->loop.open(shared->options, source, peer, std::move(context));
        return status;
      },
      [](Napi::Env e, const Nothing&) { return e.Undefined(); });
}

Napi::Value NativeNixlLoop::time(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::uint64_t from = to_size(env, to_number(info, 0, "srcBase"), "srcBase");
  const std::uint64_t to = to_size(env, to_number(info, 1, "dstBase"), "dstBase");
  const std::uint64_t slot = to_size(env, to_number(info, 2, "slotBytes"), "slotBytes");
  const auto pairs = to_array<Napi::Int32Array>(info, 3, napi_int32_array, "slotPairs");
  if (pairs.ElementLength() % 2 != 0) throw_argument(env, "slotPairs must hold whole pairs");
  std::vector<Run> runs;
  for (std::size_t i = 0; i < pairs.ElementLength(); i += 2) {
    if (pairs[i] < 0 || pairs[i + 1] < 0) throw_argument(env, "slotPairs must not be negative");
    runs.push_back({.source = from + static_cast<std::uint64_t>(pairs[i]) * slot,
                    .destination = to + static_cast<std::uint64_t>(pairs[i + 1]) * slot,
                    .bytes = slot});
  }
  return PromiseWorker<std::int64_t>::run(
      env,
      [shared = shared_, runs = std::move(runs)](std::int64_t* nanoseconds) {
        const std::lock_guard lock(shared->mutex);
        return shared->loop.time(runs, nanoseconds);
      },
      [](Napi::Env e, const std::int64_t& nanoseconds) {
        return Napi::Value(Napi::Number::New(e, static_cast<double>(nanoseconds)));
      });
}

Napi::Value NativeNixlLoop::close(const Napi::CallbackInfo& info) {
  return PromiseWorker<Nothing>::run(
      info.Env(),
      [shared = shared_](Nothing*) {
        const std::lock_guard lock(shared->mutex);
        // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): what may still be read stays leased, on purpose
        if (!shared->loop.close()) new MemoryLease(std::move(shared->source));
        shared->source = {};
        return Status::ok();
      },
      [](Napi::Env env, const Nothing&) { return env.Undefined(); });
}

}  // namespace kvt
