#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "addon/napi_setup.h"
#include "core/fragment_table.h"

namespace kvt {

// Fragments as src/agent/fragment-records.ts writes them. Throws kInvalidArgument for numbers that are none.
std::vector<Fragment> read_fragments(Napi::Env env, const double* records, std::size_t length);

// Throws kInvalidArgument naming the group and the pair unless every slot is below the table's limits.
void check_slot_pairs(Napi::Env env, std::size_t group, const FragmentTable& table, const std::int32_t* pairs,
                      std::size_t length);

}  // namespace kvt
