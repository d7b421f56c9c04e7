// What an agent says of its paths and of the processes behind its peers.

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "addon/agent_reply.h"
#include "addon/arguments.h"
#include "addon/native_agent.h"
#include "core/copy_explanation.h"
#include "transport/router_transport.h"

namespace kvt {

// (peer, [table, slot numbers] of each group, slot pairs) ->
//   { isDevice, path, costs: [available, us] for each path, reasons, hostSpeed, copy: { means, reason, remedy } };
//   without a slot pair there is no copy.
Napi::Value NativeAgent::explain(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto peer_id = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) throw_argument(env, "unknown peer " + std::to_string(peer_id));
  const auto records = to_array<Napi::Float64Array>(info, 1, napi_float64_array, "groups");
  const auto slots = to_array<Napi::Int32Array>(info, 2, napi_int32_array, "slotPairs");
  std::size_t begin = 0;
  MemoryKind kind = MemoryKind::kHost;
  std::vector<PlanGroup> groups;
  for (std::size_t i = 0; i + kGroupRecord <= records.ElementLength(); i += kGroupRecord) {
    groups.push_back(read_group(env, peer_id, groups.size(), records.Data() + i, slots, &begin, &kind));
  }
  const bool is_device = kind == MemoryKind::kDevice;
  const SliceShape shape = shape_of(groups);

  const PeerPaths& paths = peer->second.paths;
  // In the order of DataPath; host memory has one way, whichever the base transport is.
  const PathState host{!is_device, is_device ? "the pages are device memory" : "the pages are host memory"};
  PathState bounce = paths.bounce;
  if (bounce.is_available && paths.bounces_device != is_device) {
    bounce = {false, is_device ? "the bounce arena is host memory" : "the bounce arena is device memory"};
  }
  const PathState* states[kDataPathCount] = {&host, &paths.rdma, &paths.p2p, &bounce};
  Napi::Float64Array costs = Napi::Float64Array::New(env, kDataPathCount * 2);
  const Napi::Array reasons = Napi::Array::New(env, kDataPathCount);
  for (std::size_t i = 0; i < kDataPathCount; ++i) {
    costs.Data()[2 * i] = states[i]->is_available ? 1 : 0;
    costs.Data()[2 * i + 1] = estimate_us(static_cast<DataPath>(i), shape, paths.link);
    reasons.Set(static_cast<std::uint32_t>(i), Napi::String::New(env, states[i]->reason));
  }
  const DataPath path = path_of_slice(paths, is_device, groups, bounces_ ? &*bounces_ : nullptr);
  const Napi::Object out = Napi::Object::New(env);
  out.Set("isDevice", Napi::Boolean::New(env, is_device));
  out.Set("path", Napi::Number::New(env, static_cast<double>(path)));
  out.Set("costs", costs);
  out.Set("reasons", reasons);
  out.Set("hostSpeed", Napi::String::New(env, paths.host_speed));
  if (shape.bytes > 0) {
    const CopyExplanation copy = explain_copy({.path = path,
                                               .is_nixl = is_nixl_,
                                               .bounces_device = paths.bounces_device,
                                               .has_near_frames = paths.has_near_frames,
                                               .can_bounce = bounce.is_available,
                                               .has_bulk_kernel = paths.has_bulk_kernel,
                                               .blocks = paths.copy_blocks,
                                               .link = paths.link},
                                              groups);
    const Napi::Object means = Napi::Object::New(env);
    means.Set("means", Napi::Number::New(env, static_cast<double>(copy.means)));
    means.Set("reason", Napi::String::New(env, copy.reason));
    means.Set("remedy", Napi::String::New(env, copy.remedy));
    out.Set("copy", means);
  }
  return out;
}

Napi::Value NativeAgent::watch_process(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const std::uint64_t watch = to_size(env, to_number(info, 0, "watch"), "watch");
  const auto metadata = to_array<Napi::Uint8Array>(info, 1, napi_uint8_array, "metadata");
  std::vector<std::byte> bytes(metadata.ByteLength());
  if (!bytes.empty()) std::memcpy(bytes.data(), metadata.Data(), bytes.size());
  const auto reply = expect_reply(env);
  session_->engine->push(WatchProcess{watch, std::move(bytes), [reply](const Status& status) {
                                        Reply::settle(reply, status, [](Napi::Env e) { return e.Undefined(); });
                                      }});
  return reply->promise();
}

Napi::Value NativeAgent::flush_inbound(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto reply = expect_reply(env);
  session_->engine->push(FlushInbound{
      [reply](const Status& status) { Reply::settle(reply, status, [](Napi::Env e) { return e.Undefined(); }); }});
  return reply->promise();
}

void NativeAgent::unwatch_process(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (state_ != State::kOpen) return;
  session_->engine->push(UnwatchProcess{to_size(env, to_number(info, 0, "watch"), "watch")});
}

}  // namespace kvt
