#pragma once

#include <memory>

#include "core/status.h"
#include "device/device_pool.h"
#include "device/page_kernels.h"
#include "transport/transport.h"

namespace kvt {

struct P2pOptions {
  // The GPU whose memory the agent's pools are and whose kernels copy.
  int device = 0;
  // Blocks of one copy; one block keeps one multiprocessor busy. At most two copies run at a time.
  unsigned max_blocks = kDefaultCopyBlocks;
  // How its own pools are made.
  PoolMaking making = PoolMaking::kDescriptor;
};

// Device memory of one machine: kernels of the writer's GPU write straight into the receiver's mapped pages. What the
// machine lacks (driver, kernels, peer access) shows when the agent opens or a peer is added. Null and `error` set when
// the options are wrong.
std::unique_ptr<Transport> make_p2p_transport(const P2pOptions& options, Status* error);

}  // namespace kvt
