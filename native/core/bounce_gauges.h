#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvt {

// What an arena and its slices do now, and did so far. Mirrored, by name and order, by src/agent/bounce-stats.ts.
enum class BounceGauge : std::uint8_t {
  kArenaBytes,
  kArenaUsedBytes,  // granted, staged and quarantined
  // Now.
  kChunksGranted,      // regions that a peer may write, or that are being scattered
  kChunksWaiting,      // asked for by peers, without a region
  kChunksQuarantined,  // regions that nobody wants and that may still be written
  kLostBytes,          // of the arena, under those of them whose writer is gone
  kSlicesSending,
  kRequestsReceiving,
  // So far.
  kBytesGathered,
  kBytesScattered,
  kNacksSent,
  kNacksReceived,
  kQuarantinedTotal,
  kHeldOut,  // failures reported before every answer had come
  kForeignFrames,
  kStaleFrames,
  kCount,
};

// Role: lets another thread look at an agent's arena without asking its own.
// Threading: one thread writes, any thread reads; each value is whole, values of one moment are not promised.
class BounceGauges {
 public:
  static constexpr std::size_t kCount = static_cast<std::size_t>(BounceGauge::kCount);

  void set(BounceGauge gauge, std::uint64_t value) {
    values_[static_cast<std::size_t>(gauge)].store(value, std::memory_order_relaxed);
  }
  std::uint64_t at(std::size_t index) const { return values_[index].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
};

}  // namespace kvt
