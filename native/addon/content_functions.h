#pragma once

#include "addon/environment.h"
#include "addon/napi_setup.h"

namespace kvt {

// Page content for src/agent/native-page-content.ts; src/agent/content-records.ts writes the records.

// (tokens: Uint32Array) -> BigUint64Array
Napi::Value make_token_seeds(const Napi::CallbackInfo& info);

// (entries, slots, [tokensPerBlock, first block, tokenBegin], seeds of the token range) -> promise of the bytes
// written.
Napi::Value start_fill(const Napi::CallbackInfo& info, const Environment& environment);

// The same arguments -> promise of [bytesChecked, wrongBytes, entry index or -1, head, token] of the first wrong byte.
Napi::Value start_verify(const Napi::CallbackInfo& info, const Environment& environment);

}  // namespace kvt
