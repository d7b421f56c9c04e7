#pragma once

#include "addon/environment.h"
#include "addon/napi_setup.h"

namespace kvt {

// What benches compare agents with: (source base, destination base, page bytes, slot stride, slot pairs) -> promise of
// the nanoseconds that plain memcpy calls for the same pages take, on a thread of the pool. Both sides must lie in
// pools of agents of this environment.
Napi::Value start_plain_copy(const Napi::CallbackInfo& info, const Environment& environment);

}  // namespace kvt
