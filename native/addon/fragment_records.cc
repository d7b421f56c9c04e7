#include "addon/fragment_records.h"

#include <limits>
#include <string>

#include "addon/arguments.h"

namespace kvt {
namespace {

// Four numbers of each side's pool, then six of the fragment.
constexpr std::size_t kFragmentRecord = 14;

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

}  // namespace

std::vector<Fragment> read_fragments(Napi::Env env, const double* records, std::size_t length) {
  if (length % kFragmentRecord != 0) throw_argument(env, "fragments must be whole records");
  std::vector<Fragment> fragments;
  for (std::size_t at = 0; at < length; at += kFragmentRecord) {
    const double* record = records + at;
    fragments.push_back({.source = read_pool(env, record),
                         .destination = read_pool(env, record + 4),
                         .source_offset = to_size(env, record[8], "srcOffset"),
                         .destination_offset = to_size(env, record[9], "dstOffset"),
                         .bytes = to_size(env, record[10], "bytes"),
                         .count = to_size(env, record[11], "count"),
                         .source_stride = to_size(env, record[12], "srcStride"),
                         .destination_stride = to_size(env, record[13], "dstStride")});
  }
  return fragments;
}

void check_slot_pairs(Napi::Env env, std::size_t group, const FragmentTable& table, const std::int32_t* pairs,
                      std::size_t length) {
  if (are_slots_below(pairs, length, static_cast<std::uint32_t>(table.source_slot_limit()),
                      static_cast<std::uint32_t>(table.destination_slot_limit()))) {
    return;
  }
  throw_argument(env, "group " + std::to_string(group) + ", " +
                          describe_bad_slot(pairs, length, table.source_slot_limit(), table.destination_slot_limit()));
}

}  // namespace kvt
