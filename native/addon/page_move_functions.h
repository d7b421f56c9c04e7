#pragma once

#include "addon/environment.h"
#include "addon/napi_setup.h"

namespace kvt {

// Moves pages between pools of agents of this environment, host or device, one after another, on a thread of the pool:
// (ranges, moves) -> promise that settles when nothing is copied any more. `ranges` holds (base, bytes) of the memory
// that is named, `moves` five numbers each: range and offset it comes from, range and offset it goes to, bytes.
Napi::Value start_page_moves(const Napi::CallbackInfo& info, const Environment& environment);

}  // namespace kvt
