#pragma once

#include "core/status.h"
#include "device/cuda_context.h"

namespace kvt {

// Whether kernels of this GPU may see late what a network card wrote into its memory, unless flush_inbound ran between.
bool needs_inbound_flush(const CudaContext& context);

// Makes it visible to everything that is launched from here on; a no-op where the GPU sees to that itself. The context
// is current. Takes microseconds. kCapability when the driver has no such call.
Status flush_inbound(const CudaContext& context);

}  // namespace kvt
