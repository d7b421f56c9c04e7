#pragma once

#include <vector>

#include "transport/transport.h"

namespace kvt::test {

// NIXL without CUDA, or with it.
class FakeNixlBase final : public Transport {
 public:
  explicit FakeNixlBase(bool takes_devices) : takes_devices_(takes_devices) {}

  Status open() override { return Status::ok(); }
  Status allocate_region(std::size_t, Region*) override { return Status(StatusCode::kInternal, "not asked for"); }
  Status register_region(const Region& region) override {
    if (!takes_devices_) return Status(StatusCode::kCapability, "libcudart.so.13 was not found");
    regions.push_back(region);
    return Status::ok();
  }
  Status metadata(std::vector<std::byte>* out) override {
    out->assign(1, std::byte{1});
    return Status::ok();
  }
  Status begin_add_peer(PeerId, std::span<const std::byte>) override { return Status::ok(); }
  PeerState poll_peer(PeerId, Status*) override { return PeerState::kReady; }
  void remove_peer(PeerId) override {}
  bool peer_owns(PeerId, std::uintptr_t, std::size_t) const override { return true; }
  std::vector<Region> peer_regions(PeerId) const override { return {{1 << 20, 1 << 20, MemoryKind::kDevice, 0}}; }
  BatchLimits limits() const override { return {}; }
  SliceRoute route(PeerId, Ticket, std::span<const PlanGroup>) const override {
    return {false, {}, static_cast<std::uint8_t>(DataPath::kRdma)};
  }
  BatchResult post(BatchId, PeerId, std::span<const Run>) override { return {}; }
  BatchResult poll(BatchId) override { return {}; }
  void take_drained(std::vector<BatchId>*) override {}
  void progress() override {}
  std::optional<TimePoint> next_wakeup(TimePoint) const override { return std::nullopt; }
  bool close() override { return true; }

  std::vector<Region> regions;

 private:
  bool takes_devices_;
};

}  // namespace kvt::test
