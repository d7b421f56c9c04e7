#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "addon/open_devices.h"
#include "device/cuda_stream.h"
#include "engine/device_event.h"

namespace kvt {

// Role: the streams and events that JS made, by the numbers it knows them by.
// Threading: the JS thread, except for devices().
// Ownership: events live on in the submissions that wait for them.
class DeviceDesk {
 public:
  const std::shared_ptr<OpenDevices>& devices() const { return devices_; }

  void keep_stream(CudaStream stream) {
    const auto handle = reinterpret_cast<std::uint64_t>(stream.handle());
    streams_.emplace(handle, std::move(stream));
  }
  void drop_stream(std::uint64_t handle) { streams_.erase(handle); }

  // A mark at the present end of `stream`, of whichever library it is. Queues it and returns.
  Status record(int ordinal, std::uint64_t stream, std::uint32_t* event);
  // A mark that was recorded already. Returns its number.
  std::uint32_t keep_event(CudaEvent mark) {
    events_.emplace(++last_event_, std::make_shared<DeviceEvent>(std::move(mark)));
    return last_event_;
  }
  std::shared_ptr<DeviceEvent> find_event(std::uint32_t event) const {
    const auto entry = events_.find(event);
    return entry == events_.end() ? nullptr : entry->second;
  }
  void drop_event(std::uint32_t event) { events_.erase(event); }

 private:
  std::shared_ptr<OpenDevices> devices_ = std::make_shared<OpenDevices>();
  std::unordered_map<std::uint64_t, CudaStream> streams_;
  std::unordered_map<std::uint32_t, std::shared_ptr<DeviceEvent>> events_;
  std::uint32_t last_event_ = 0;
};

}  // namespace kvt
