#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "device/cuda_context.h"
#include "device/device_pool.h"
#include "transport/path_options.h"
#include "transport/region_table.h"
#include "transport/transport.h"

namespace kvt {

// Role: one agent's GPU: its context, its pools, and the p2p transport over them where this machine has one. Makes the
//   decision which of the two ways to device memory exist here, once, and remembers why not.
// Threading: the progress thread. The GPU's context stays current on it from open() on, because NIXL and UCX look for
// one. Ownership: owns the p2p transport and pools; borrows the base transport, with which pools are registered.
class DevicePaths {
 public:
  DevicePaths(Transport* base, RouterOptions options) : base_(base), options_(options) {}

  // At the first use of a GPU. kInvalidArgument when another one is in use already: an agent has one.
  Status open(int device);
  bool is_open() const { return context_ != nullptr; }
  const CudaContext& context() const { return *context_; }

  Status allocate(int device, std::size_t size, Region* out);
  Status register_region(const Region& region);
  const RegionTable& regions() const { return regions_; }

  // Null where this machine or the choice of path has none; `why_no_p2p` then says why.
  Transport* p2p() const { return p2p_.get(); }
  const std::string& why_no_p2p() const { return why_no_p2p_; }
  // Whether every pool was registered with the base transport.
  bool base_reaches_pools() const { return why_no_rdma_.empty(); }
  const std::string& why_no_rdma() const { return why_no_rdma_; }

  // See Transport::flush_inbound.
  Status flush_inbound() const;

  // Appends what fell back since the last call.
  void take_advice(std::vector<std::string>* out);

  // After the base transport has closed, which holds registrations of the pools. False: something may still write.
  bool close();
  // Nothing of it is ever freed: the base transport may still use it.
  void abandon();

 private:
  Status open_p2p(int device);
  // `pool`: where the p2p transport does not keep it. Nothing of either stays after a failure.
  Status add(const Region& region, std::unique_ptr<DevicePool> pool);

  Transport* base_;
  RouterOptions options_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<Transport> p2p_;
  std::vector<std::unique_ptr<DevicePool>> pools_;  // without p2p
  RegionTable regions_;
  std::string why_no_p2p_ = "this agent has no device memory";
  std::string why_no_rdma_;
  std::vector<std::string> advice_;
};

}  // namespace kvt
