#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvt {

// What an agent's notes came to since it opened. Mirrored, by name and order, by src/agent/note-stats.ts.
enum class NoteGauge : std::uint8_t {
  kSent,
  kUnsent,    // armed and not sent: a transfer failed, was withdrawn, or there was no way to the peer
  kReceived,  // handed to JS
  kDropped,   // came faster than JS took them
  kRefused,   // connections that were cut because of what they said
  kCount,
};

// Role: lets another thread look at an agent's notes without asking its own, and bounds those that wait for JS.
// Threading: the progress thread counts, any thread reads; each value is whole, values of one moment are not promised.
class NoteGauges {
 public:
  static constexpr std::size_t kCount = static_cast<std::size_t>(NoteGauge::kCount);
  // Notes that JS has not taken yet: beyond that it is not the one that would be helped.
  static constexpr std::size_t kMaxWaiting = 1024;

  void add(NoteGauge gauge) { values_[static_cast<std::size_t>(gauge)].fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t at(NoteGauge gauge) const { return at(static_cast<std::size_t>(gauge)); }
  std::uint64_t at(std::size_t index) const { return values_[index].load(std::memory_order_relaxed); }

  // False: too many wait, and this one is dropped.
  bool may_wait() {
    if (waiting_.load(std::memory_order_relaxed) >= kMaxWaiting) return false;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // JS took it.
  void taken() { waiting_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
  std::atomic<std::size_t> waiting_{0};
};

}  // namespace kvt
