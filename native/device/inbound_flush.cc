#include "device/inbound_flush.h"

namespace kvt {

bool needs_inbound_flush(const CudaContext& context) {
  return context.attribute(cuda::kAttributeGpuDirectRdmaWritesOrdering) < cuda::kRdmaWritesOrderedForOwner;
}

Status flush_inbound(const CudaContext& context) {
  if (!needs_inbound_flush(context)) return Status::ok();
  const CudaApi& api = context.api();
  if (api.cuFlushGPUDirectRDMAWrites == nullptr) {
    return Status(StatusCode::kCapability,
                  "the driver cannot flush what a network card wrote into GPU memory; update the NVIDIA driver");
  }
  return api.check(api.cuFlushGPUDirectRDMAWrites(cuda::kFlushCurrentContext, cuda::kFlushToOwner),
                   "cuFlushGPUDirectRDMAWrites");
}

}  // namespace kvt
