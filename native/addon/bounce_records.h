#pragma once

#include <cstddef>

#include "addon/napi_setup.h"
#include "transport/bounce_transport.h"

namespace kvt {

// Numbers as src/agent/bounce.ts writes them: arenaBytes, maxChunkSize, minDescriptorCount, maxAverageDescriptorSize,
// maxInflightChunksPerRequest, requestTimeoutMs, gatherBlocks, isForced, hasThresholds.
BounceOptions read_bounce_options(Napi::Env env, const double* numbers, std::size_t count);

}  // namespace kvt
