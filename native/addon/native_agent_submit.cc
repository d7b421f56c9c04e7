// What a submission is made of: fragment tables and slot pairs, checked here so that the progress thread need not.

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "addon/arguments.h"
#include "addon/native_agent.h"

namespace kvt {
namespace {

// One fragment, as src/agent/fragment-records.ts writes it.
constexpr std::size_t kFragmentRecord = 14;

// A submission's head, then (table, slot numbers) for each group, as src/agent/native-agent.ts writes it.
constexpr std::size_t kSubmissionHead = 5;
constexpr std::size_t kGroupRecord = 2;

// Whether every slot of one side is inside [0, limit). Negative slots are huge when read unsigned; no early exit, so
// that the loop vectorises.
bool are_slots_below(const std::int32_t* pairs, std::size_t length, std::uint32_t source_limit,
                     std::uint32_t destination_limit) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i + 1 < length; i += 2) {
    bad |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(pairs[i]) >= source_limit);
    bad |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(pairs[i + 1]) >= destination_limit);
  }
  return bad == 0;
}

std::string describe_bad_slot(const std::int32_t* pairs, std::size_t length, std::int32_t source_limit,
                              std::int32_t destination_limit) {
  for (std::size_t i = 0; i < length; ++i) {
    const std::int32_t limit = i % 2 == 0 ? source_limit : destination_limit;
    if (pairs[i] >= 0 && pairs[i] < limit) continue;
    return "pair " + std::to_string(i / 2) + ": " + (i % 2 == 0 ? "source" : "destination") + " slot " +
           std::to_string(pairs[i]) + " is not in 0 .. " + std::to_string(limit - 1);
  }
  return "a slot is out of range";
}

SlotPool read_pool(Napi::Env env, const double* at) {
  SlotPool pool;
  pool.base = to_size(env, at[0], "pool base");
  pool.slot_bytes = to_size(env, at[1], "slotBytes");
  pool.slot_stride = to_size(env, at[2], "slotStride");
  const std::uint64_t count = to_size(env, at[3], "slotCount");
  if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
    throw_argument(env, "slotCount must be below 2^31");
  }
  pool.slot_count = static_cast<std::int32_t>(count);
  return pool;
}

}  // namespace

void NativeAgent::check_pool(Napi::Env env, std::size_t fragment, const char* side, const RegionSet& regions,
                             const SlotPool& pool) const {
  const std::size_t size = pool.slot_stride * static_cast<std::size_t>(pool.slot_count - 1) + pool.slot_bytes;
  if (regions.contains(pool.base, size)) return;
  throw_argument(env, "fragment " + std::to_string(fragment) + ": the " + side + " pool (" + std::to_string(size) +
                          " bytes at " + std::to_string(pool.base) + ") is not inside memory that its side registered");
}

Napi::Value NativeAgent::prepare_fragments(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto peer_id = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) throw_argument(env, "unknown peer " + std::to_string(peer_id));
  const auto records = to_array<Napi::Float64Array>(info, 1, napi_float64_array, "fragments");
  if (records.ElementLength() % kFragmentRecord != 0) throw_argument(env, "fragments must be whole records");

  std::vector<Fragment> fragments;
  for (std::size_t at = 0; at < records.ElementLength(); at += kFragmentRecord) {
    const double* record = records.Data() + at;
    fragments.push_back({.source = read_pool(env, record),
                         .destination = read_pool(env, record + 4),
                         .source_offset = to_size(env, record[8], "srcOffset"),
                         .destination_offset = to_size(env, record[9], "dstOffset"),
                         .bytes = to_size(env, record[10], "bytes"),
                         .count = to_size(env, record[11], "count"),
                         .source_stride = to_size(env, record[12], "srcStride"),
                         .destination_stride = to_size(env, record[13], "dstStride")});
  }
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create(fragments, table.get());
  if (!status.is_ok()) throw_status(env, status);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    check_pool(env, i, "source", session_->regions, fragments[i].source);
    check_pool(env, i, "destination", peer->second, fragments[i].destination);
  }
  const std::uint32_t handle = ++last_table_;
  tables_.emplace(handle, Table{peer_id, std::move(table)});
  return Napi::Number::New(env, handle);
}

std::shared_ptr<const ReadyEvent> NativeAgent::find_event(Napi::Env env, double handle) const {
  if (handle == 0) return nullptr;
  const auto event = events_.find(static_cast<std::uint32_t>(to_size(env, handle, "event")));
  if (event == events_.end()) throw_argument(env, "after: unknown event");
  return event->second;
}

void NativeAgent::submit(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto head = to_array<Napi::Float64Array>(info, 0, napi_float64_array, "submission");
  const auto slots = to_array<Napi::Int32Array>(info, 1, napi_int32_array, "slotPairs");
  if (head.ElementLength() < kSubmissionHead) throw_argument(env, "the submission has no head");
  const double* record = head.Data();

  Submission submission;
  submission.id = static_cast<SubmissionId>(to_integer(env, record[0], "id"));
  submission.peer = static_cast<PeerId>(to_size(env, record[1], "peer"));
  submission.flow = static_cast<FlowId>(to_integer(env, record[2], "flow"));
  if (!peers_.contains(submission.peer)) throw_argument(env, "unknown peer " + std::to_string(submission.peer));
  submission.after = find_event(env, record[3]);
  const std::uint64_t group_count = to_size(env, record[4], "group count");
  if (head.ElementLength() < kSubmissionHead + group_count * kGroupRecord) {
    throw_argument(env, "the submission has fewer groups than it says");
  }

  std::size_t begin = 0;
  for (std::size_t i = 0; i < group_count; ++i) {
    const double* group = record + kSubmissionHead + i * kGroupRecord;
    const auto table = tables_.find(static_cast<std::uint32_t>(to_size(env, group[0], "fragments")));
    if (table == tables_.end() || table->second.peer != submission.peer) {
      throw_argument(env, "group " + std::to_string(i) + ": unknown fragment table for this peer");
    }
    const std::uint64_t length = to_size(env, group[1], "slotPairs length");
    if (length % 2 != 0 || length > slots.ElementLength() - begin) {
      throw_argument(env, "group " + std::to_string(i) + ": slotPairs must hold whole pairs");
    }
    const FragmentTable& fragments = *table->second.table;
    const std::int32_t* pairs = slots.Data() + begin;
    if (!are_slots_below(pairs, length, static_cast<std::uint32_t>(fragments.source_slot_limit()),
                         static_cast<std::uint32_t>(fragments.destination_slot_limit()))) {
      throw_argument(
          env, "group " + std::to_string(i) + ", " +
                   describe_bad_slot(pairs, length, fragments.source_slot_limit(), fragments.destination_slot_limit()));
    }
    submission.groups.push_back({table->second.table, std::vector<std::int32_t>(pairs, pairs + length)});
    begin += length;
  }
  if (!live_.insert(submission.id).second) {
    throw_argument(env, "submission " + std::to_string(static_cast<std::int64_t>(submission.id)) + " exists already");
  }
  session_->engine->push(std::move(submission));
}

}  // namespace kvt
