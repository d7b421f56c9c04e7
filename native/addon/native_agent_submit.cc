// What a submission is made of: fragment tables and slot pairs, checked here so that the progress thread need not.

#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/fragment_records.h"
#include "addon/native_agent.h"
#include "transport/note_lane.h"

namespace kvt {
namespace {

// A submission's head, then (table, slot numbers) for each group, as src/agent/native-agent.ts writes it.
constexpr std::size_t kSubmissionHead = 5;

}  // namespace

MemoryKind NativeAgent::check_pool(Napi::Env env, std::size_t fragment, const char* side, const RegionTable& regions,
                                   const SlotPool& pool) const {
  const std::size_t size = pool.slot_stride * static_cast<std::size_t>(pool.slot_count - 1) + pool.slot_bytes;
  const Region* region = regions.find(pool.base, size);
  if (region != nullptr) return region->kind;
  throw_argument(env, "fragment " + std::to_string(fragment) + ": the " + side + " pool (" + std::to_string(size) +
                          " bytes at " + std::to_string(pool.base) + ") is not inside memory that its side registered");
}

void NativeAgent::check_reachable(Napi::Env env, const PeerRecord& peer, MemoryKind from, MemoryKind to) const {
  if (from == MemoryKind::kHost && to == MemoryKind::kHost) return;
  if (peer.paths.rdma.is_available) return;
  const bool is_bounced = peer.paths.bounce.is_available && peer.paths.bounces_device;
  if (from == MemoryKind::kDevice && to == MemoryKind::kDevice && (peer.paths.p2p.is_available || is_bounced)) return;
  const auto name = [](MemoryKind kind) { return kind == MemoryKind::kDevice ? "device" : "host"; };
  throw_status(
      env, Status(StatusCode::kCapability, std::string("no path from ") + name(from) + " memory to the peer's " +
                                               name(to) + " memory; p2p (device to device): " + peer.paths.p2p.reason +
                                               "; rdma: " + peer.paths.rdma.reason));
}

Napi::Value NativeAgent::prepare_fragments(const Napi::CallbackInfo& info) {
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
  MemoryKind source = MemoryKind::kHost;
  MemoryKind destination = MemoryKind::kHost;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const MemoryKind from = check_pool(env, i, "source", session_->regions, fragments[i].source);
    const MemoryKind to = check_pool(env, i, "destination", peer->second.regions, fragments[i].destination);
    if (i > 0 && (from != source || to != destination)) {
      throw_argument(env,
                     "fragment " + std::to_string(i) + ": one table cannot mix host and device memory on one side");
    }
    source = from;
    destination = to;
  }
  check_reachable(env, peer->second, source, destination);
  const std::uint32_t handle = ++last_table_;
  tables_.emplace(handle, Table{peer_id, std::move(table), source});
  return Napi::Number::New(env, handle);
}

std::shared_ptr<const ReadyEvent> NativeAgent::find_event(Napi::Env env, double handle) const {
  if (handle == 0) return nullptr;
  if (handle < 0) {
    // Device events belong to the environment; submissions name them by negative numbers.
    const auto mark = environment_->desk().find_event(static_cast<std::uint32_t>(to_size(env, -handle, "event")));
    if (mark == nullptr) throw_argument(env, "after: unknown event");
    return mark;
  }
  const auto event = events_.find(static_cast<std::uint32_t>(to_size(env, handle, "event")));
  if (event == events_.end()) throw_argument(env, "after: unknown event");
  return event->second;
}

// What to tell the peer's agent once this submission and some before it have transferred.
void NativeAgent::read_note(const Napi::CallbackInfo& info, Submission* submission) {
  const Napi::Env env = info.Env();
  const auto note = to_array<Napi::Uint8Array>(info, 4, napi_uint8_array, "note");
  const auto also = to_array<Napi::Float64Array>(info, 5, napi_float64_array, "note.also");
  if (note.ByteLength() == 0 || note.ByteLength() > NoteLane::kMaxNoteBytes) {
    throw_argument(env, "a note has 1 to " + std::to_string(NoteLane::kMaxNoteBytes) + " bytes, not " +
                            std::to_string(note.ByteLength()));
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(note.Data());
  submission->note.assign(bytes, bytes + note.ByteLength());
  for (std::size_t i = 0; i < also.ElementLength(); ++i) {
    submission->note_also.push_back(static_cast<SubmissionId>(to_integer(env, also[i], "note.also")));
  }
}

PlanGroup NativeAgent::read_group(Napi::Env env, PeerId peer, std::size_t index, const double* record,
                                  const Napi::Int32Array& slots, std::size_t* begin, MemoryKind* kind) const {
  const auto table = tables_.find(static_cast<std::uint32_t>(to_size(env, record[0], "fragments")));
  if (table == tables_.end() || table->second.peer != peer) {
    throw_argument(env, "group " + std::to_string(index) + ": unknown fragment table for this peer");
  }
  if (index > 0 && table->second.kind != *kind) {
    throw_argument(env, "group " + std::to_string(index) + ": one submission cannot mix host and device memory");
  }
  *kind = table->second.kind;
  const std::uint64_t length = to_size(env, record[1], "slotPairs length");
  if (length % 2 != 0 || length > slots.ElementLength() - *begin) {
    throw_argument(env, "group " + std::to_string(index) + ": slotPairs must hold whole pairs");
  }
  const std::int32_t* pairs = slots.Data() + *begin;
  check_slot_pairs(env, index, *table->second.table, pairs, length);
  *begin += length;
  return {table->second.table, std::vector<std::int32_t>(pairs, pairs + length)};
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
  // A ticket and the keys of its groups come beside the head, since most submissions have none.
  const bool has_ticket = info[2].IsBigInt();
  const double* keys = nullptr;
  std::size_t key_count = 0;
  if (has_ticket) {
    bool is_whole = false;
    submission.ticket = info[2].As<Napi::BigInt>().Uint64Value(&is_whole);
    if (!is_whole) throw_argument(env, "a ticket is a bigint below 2^64");
    const auto array = to_array<Napi::Float64Array>(info, 3, napi_float64_array, "keys");
    keys = array.Data();
    key_count = array.ElementLength();
  }
  if (!info[4].IsUndefined()) read_note(info, &submission);
  const std::uint64_t group_count = to_size(env, record[4], "group count");
  if (head.ElementLength() < kSubmissionHead + group_count * kGroupRecord) {
    throw_argument(env, "the submission has fewer groups than it says");
  }

  std::size_t begin = 0;
  MemoryKind kind = MemoryKind::kHost;
  for (std::size_t i = 0; i < group_count; ++i) {
    const double* group = record + kSubmissionHead + i * kGroupRecord;
    if (has_ticket && i >= key_count) throw_argument(env, "a submission with a ticket names a key for each group");
    submission.groups.push_back(read_group(env, submission.peer, i, group, slots, &begin, &kind));
    if (has_ticket) submission.groups.back().key = static_cast<std::uint32_t>(to_size(env, keys[i], "key"));
  }
  if (!live_.insert(submission.id).second) {
    throw_argument(env, "submission " + std::to_string(static_cast<std::int64_t>(submission.id)) + " exists already");
  }
  session_->engine->push(std::move(submission));
}

}  // namespace kvt
