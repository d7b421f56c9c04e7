#include "addon/plan_functions.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/arguments.h"
#include "addon/fragment_records.h"
#include "core/plan_cursor.h"

namespace kvt {
namespace {

constexpr std::size_t kGroupRecord = 2;
constexpr std::size_t kRunRecord = 3;

std::vector<PlanGroup> read_groups(Napi::Env env, const Napi::CallbackInfo& info) {
  const auto records = to_array<Napi::Float64Array>(info, 0, napi_float64_array, "fragments");
  const auto lengths = to_array<Napi::Float64Array>(info, 1, napi_float64_array, "groups");
  const auto slots = to_array<Napi::Int32Array>(info, 2, napi_int32_array, "slotPairs");
  if (lengths.ElementLength() % kGroupRecord != 0) throw_argument(env, "groups must be whole records");
  std::vector<PlanGroup> groups;
  std::size_t record = 0;
  std::size_t slot = 0;
  for (std::size_t at = 0; at < lengths.ElementLength(); at += kGroupRecord) {
    const std::size_t index = groups.size();
    const std::uint64_t numbers = to_size(env, lengths.Data()[at], "fragment numbers");
    const std::uint64_t length = to_size(env, lengths.Data()[at + 1], "slotPairs length");
    if (numbers > records.ElementLength() - record || length > slots.ElementLength() - slot || length % 2 != 0) {
      throw_argument(env, "group " + std::to_string(index) + " has fewer fragments or slot pairs than it says");
    }
    auto table = std::make_shared<FragmentTable>();
    const Status status = FragmentTable::create(read_fragments(env, records.Data() + record, numbers), table.get());
    if (!status.is_ok()) throw_status(env, status);
    const std::int32_t* pairs = slots.Data() + slot;
    check_slot_pairs(env, index, *table, pairs, length);
    groups.push_back({std::move(table), std::vector<std::int32_t>(pairs, pairs + length)});
    record += numbers;
    slot += length;
  }
  return groups;
}

}  // namespace

Napi::Value expand_plan(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  PlanCursor cursor(read_groups(env, info));
  const std::size_t max_runs = to_size(env, to_number(info, 3, "maxRuns"), "maxRuns");
  const std::size_t max_bytes = to_size(env, to_number(info, 4, "maxBytes"), "maxBytes");
  if (max_runs == 0 || max_bytes == 0) throw_argument(env, "maxRuns and maxBytes must be positive");
  std::vector<Run> runs;
  while (cursor.take(max_runs, max_bytes, &runs) > 0) {
  }
  Napi::Float64Array out = Napi::Float64Array::New(env, runs.size() * kRunRecord);
  double* at = out.Data();
  for (const Run& run : runs) {
    *at++ = static_cast<double>(run.source);
    *at++ = static_cast<double>(run.destination);
    *at++ = static_cast<double>(run.bytes);
  }
  return out;
}

}  // namespace kvt
