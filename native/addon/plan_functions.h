#pragma once

#include "addon/napi_setup.h"

namespace kvt {

// What a plan expands to, moving nothing: (fragment records of all groups, [fragment records, slot numbers] of each
// group, slot pairs of all groups, runs and bytes a batch) -> [source, destination, bytes] of every run, in order.
// src/agent/expand-plan.ts writes the arguments.
Napi::Value expand_plan(const Napi::CallbackInfo& info);

}  // namespace kvt
