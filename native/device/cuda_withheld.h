#pragma once

#include "core/status.h"
#include "device/cuda_api.h"

namespace kvt {

// Makes this process's driver refuse what KV_TRANSCEIVER_CUDA_WITHOUT lists (commas between), as other machines and
// containers do, so that each fallback can be seen and tested where everything works:
//
//   peer-access   no GPU reaches another one's memory
//   descriptors   device memory is not exported by descriptor
//   ipc-handles   nor by IPC handle
//
// kInvalidArgument for any other name.
Status withhold_cuda_features(CudaApi* api);

}  // namespace kvt
