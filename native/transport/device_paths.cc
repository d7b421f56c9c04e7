#include "transport/device_paths.h"

#include <utility>

#include "device/inbound_flush.h"
#include "transport/p2p_transport.h"

namespace kvt {

Status DevicePaths::open(int device) {
  if (context_ != nullptr) {
    if (context_->ordinal() == device) return Status::ok();
    return Status(StatusCode::kInvalidArgument, "this agent's device memory is on GPU " +
                                                    std::to_string(context_->ordinal()) +
                                                    "; open another agent for GPU " + std::to_string(device));
  }
  std::shared_ptr<const CudaContext> context;
  Status status = CudaContext::retain(device, &context);
  if (!status.is_ok()) return status;
  status = context->api().check(context->api().cuCtxSetCurrent(context->handle()), "cuCtxSetCurrent");
  if (!status.is_ok()) return status;
  if (!options_.base_reaches_devices) why_no_rdma_ = "the host agent moves no device memory; use the nixl agent";
  if (options_.choice == PathChoice::kRdma && !options_.base_reaches_devices) {
    return Status(StatusCode::kCapability, "path 'rdma': " + why_no_rdma_);
  }
  if (options_.choice == PathChoice::kBounce && options_.arena_device != device) {
    return Status(StatusCode::kCapability,
                  options_.base_reaches_devices
                      ? "path 'bounce': the bounce arena is host memory, because the agent was opened without a GPU; "
                        "give createAgent the option device"
                      : "path 'bounce': the host agent's bounce arena is host memory; use the nixl agent, or path "
                        "'auto'");
  }
  context_ = std::move(context);
  status = open_p2p(device);
  // Tried again with the next pool.
  if (!status.is_ok()) context_ = nullptr;
  return status;
}

Status DevicePaths::open_p2p(int device) {
  if (options_.choice == PathChoice::kRdma) {
    why_no_p2p_ = "path 'rdma' was asked for";
    return Status::ok();
  }
  if (options_.choice == PathChoice::kBounce) {
    why_no_p2p_ = "path 'bounce' was asked for";
    return Status::ok();
  }
  Status status;
  // UCX shares plain allocations only, so that pools which both may use are plain.
  p2p_ = make_p2p_transport({.device = device,
                             .max_blocks = options_.copy_blocks,
                             .making = options_.base_reaches_devices ? PoolMaking::kPlain : PoolMaking::kDescriptor},
                            &status);
  if (status.is_ok()) status = p2p_->open();
  if (status.is_ok()) {
    why_no_p2p_.clear();
    return status;
  }
  (void)p2p_->close();
  p2p_.reset();
  const bool may_do_without = options_.choice == PathChoice::kAuto && options_.base_reaches_devices;
  if (!may_do_without || status.code() != StatusCode::kCapability) return status;
  why_no_p2p_ = status.message();
  advice_.push_back("GPU " + std::to_string(device) + " has no p2p path, NIXL moves its pages: " + why_no_p2p_);
  return Status::ok();
}

Status DevicePaths::allocate(int device, std::size_t size, Region* out) {
  Status status = open(device);
  if (!status.is_ok()) return status;
  Region region;
  std::unique_ptr<DevicePool> pool;
  if (p2p_ != nullptr) {
    status = p2p_->allocate_region(size, &region);
  } else {
    status = DevicePool::allocate(context_, size, &pool, PoolMaking::kPlain);
    if (status.is_ok()) region = {pool->base(), size, MemoryKind::kDevice, device};
  }
  if (status.is_ok()) status = add(region, std::move(pool));
  if (status.is_ok()) *out = region;
  return status;
}

Status DevicePaths::register_region(const Region& region) {
  Status status = open(region.device);
  if (!status.is_ok()) return status;
  std::unique_ptr<DevicePool> pool;
  if (p2p_ != nullptr) {
    status = p2p_->register_region(region);
  } else if (regions_.overlaps(region)) {
    status = Status(StatusCode::kInvalidArgument, "the memory overlaps a region that the agent has already");
  } else {
    status = DevicePool::adopt(context_, region.base, region.size, &pool);
  }
  return status.is_ok() ? add(region, std::move(pool)) : status;
}

Status DevicePaths::add(const Region& region, std::unique_ptr<DevicePool> pool) {
  const bool is_for_base = options_.base_reaches_devices && options_.choice != PathChoice::kP2p && base_reaches_pools();
  Status status = is_for_base ? base_->register_region(region) : Status::ok();
  // Without p2p nothing else reaches it: the pool goes as if it had never been.
  if (!status.is_ok() && p2p_ == nullptr) return status;
  if (!status.is_ok()) {
    why_no_rdma_ = status.message();
    advice_.push_back("peers that p2p does not reach cannot be reached at all: " + why_no_rdma_);
  }
  if (!regions_.add(region)) return Status(StatusCode::kInternal, "the driver allocated regions that overlap");
  if (pool != nullptr) pools_.push_back(std::move(pool));
  return Status::ok();
}

Status DevicePaths::flush_inbound() const {
  // Peers of this machine write over the GPU's own link, whose order needs no help.
  if (context_ == nullptr || !options_.base_reaches_devices) return Status::ok();
  return kvt::flush_inbound(*context_);
}

void DevicePaths::take_advice(std::vector<std::string>* out) {
  if (p2p_ != nullptr) p2p_->take_advice(&advice_);
  for (std::string& text : advice_) out->push_back(std::move(text));
  advice_.clear();
}

bool DevicePaths::close() {
  const bool is_drained = p2p_ == nullptr || p2p_->close();
  p2p_.reset();
  pools_.clear();
  return is_drained;
}

void DevicePaths::abandon() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): nobody owns it any more, on purpose
  if (!pools_.empty()) new std::vector<std::unique_ptr<DevicePool>>(std::move(pools_));
  (void)p2p_.release();
}

}  // namespace kvt
