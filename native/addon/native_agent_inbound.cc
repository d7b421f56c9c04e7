// Receives that this side scatters itself (bounce): tables, slots of a ticket, and its end.

#include <string>
#include <utility>
#include <vector>

#include "addon/agent_reply.h"
#include "addon/arguments.h"
#include "addon/fragment_records.h"
#include "addon/native_agent.h"

namespace kvt {
namespace {

// (key, table, slot numbers) for each group, as src/agent/bounce.ts writes it.
constexpr std::size_t kInboundRecord = 3;

Ticket to_ticket(const Napi::CallbackInfo& info, std::size_t index) {
  bool is_whole = false;
  const Ticket ticket = info[index].IsBigInt() ? info[index].As<Napi::BigInt>().Uint64Value(&is_whole) : 0;
  if (!is_whole || ticket == 0) throw_argument(info.Env(), "a ticket is a bigint from 1 to 2^64 - 1");
  return ticket;
}

}  // namespace

Napi::Value NativeAgent::prepare_inbound(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto peer_id = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) throw_argument(env, "unknown peer " + std::to_string(peer_id));
  const auto records = to_array<Napi::Float64Array>(info, 1, napi_float64_array, "fragments");
  const std::vector<Fragment> fragments = read_fragments(env, records.Data(), records.ElementLength());
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create(fragments, table.get());
  if (!status.is_ok()) throw_status(env, status);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    (void)check_pool(env, i, "source", peer->second.regions, fragments[i].source);
    (void)check_pool(env, i, "destination", session_->regions, fragments[i].destination);
  }
  const std::uint32_t handle = ++last_table_;
  inbound_tables_.emplace(handle, Table{peer_id, std::move(table)});
  return Napi::Number::New(env, handle);
}

Napi::Value NativeAgent::expect_inbound(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  ExpectInbound command;
  command.peer = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  command.ticket = to_ticket(info, 1);
  const auto records = to_array<Napi::Float64Array>(info, 2, napi_float64_array, "groups");
  const auto slots = to_array<Napi::Int32Array>(info, 3, napi_int32_array, "slots");
  if (records.ElementLength() % kInboundRecord != 0) throw_argument(env, "groups must be whole records");
  std::size_t begin = 0;
  for (std::size_t at = 0; at < records.ElementLength(); at += kInboundRecord) {
    const double* record = records.Data() + at;
    InboundGroup group;
    group.key = static_cast<std::uint32_t>(to_size(env, record[0], "key"));
    const auto table = inbound_tables_.find(static_cast<std::uint32_t>(to_size(env, record[1], "fragments")));
    if (table == inbound_tables_.end() || table->second.peer != command.peer) {
      throw_argument(env, "an inbound group names an unknown fragment table for this peer");
    }
    group.table = table->second.table;
    const std::uint64_t count = to_size(env, record[2], "slot count");
    if (count > slots.ElementLength() - begin) throw_argument(env, "fewer slots than the groups say");
    group.slots.assign(slots.Data() + begin, slots.Data() + begin + count);
    begin += count;
    command.groups.push_back(std::move(group));
  }
  const auto reply = expect_reply(env);
  command.reply = [reply](const Status& status) {
    Reply::settle(reply, status, [](Napi::Env e) { return e.Undefined(); });
  };
  session_->engine->push(std::move(command));
  return reply->promise();
}

Napi::Value NativeAgent::end_inbound(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  EndInbound command;
  command.peer = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  command.ticket = to_ticket(info, 1);
  const auto reply = expect_reply(env);
  command.reply = [reply] { Reply::settle(reply, Status::ok(), [](Napi::Env e) { return e.Undefined(); }); };
  session_->engine->push(std::move(command));
  return reply->promise();
}

// A number for each BounceGauge, or null without an arena. Also of an agent that was closed.
Napi::Value NativeAgent::bounce_stats(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (gauges_ == nullptr) return env.Null();
  Napi::Float64Array out = Napi::Float64Array::New(env, BounceGauges::kCount);
  for (std::size_t i = 0; i < BounceGauges::kCount; ++i) out[i] = static_cast<double>(gauges_->at(i));
  return out;
}

// A number for each NoteGauge. Also of an agent that was closed.
Napi::Value NativeAgent::note_stats(const Napi::CallbackInfo& info) {
  Napi::Float64Array out = Napi::Float64Array::New(info.Env(), NoteGauges::kCount);
  for (std::size_t i = 0; i < NoteGauges::kCount; ++i) out[i] = static_cast<double>(notes_->at(i));
  return out;
}

}  // namespace kvt
