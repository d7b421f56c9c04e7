#include "transport/nixl_speed.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace kvt::nixl {
namespace {

// Over NVLink or a network card memory moves at some ten to some hundred GB/s; by TCP or through the host at 0.5 to 3.
constexpr double kSlowBytesPerUs = 4e3;
// Shared memory takes one or two copies of a processor, TCP on one machine at least four and the kernel's own work.
constexpr double kSlowShareOfCopy = 0.25;
// The poster is held up for each descriptor whatever carries it (3.5 us over cuda_ipc): that is no detour.
constexpr std::chrono::nanoseconds kPerRun{4000};
// A window holds so many bytes, and the best of so many windows counts: others use the machine too.
constexpr std::size_t kHostWindow = std::size_t{4} << 20;
constexpr std::size_t kDeviceWindow = std::size_t{32} << 20;
constexpr int kWindows = 8;

const char* name_of(MemoryKind kind) { return kind == MemoryKind::kDevice ? "device memory" : "host memory"; }

std::string gigabytes(double bytes_per_us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GB/s", bytes_per_us / 1e3);
  return text;
}

const char* remedy_for(MemoryKind kind) {
  return kind == MemoryKind::kDevice
             ? "check that UCX_TLS allows cuda_copy and cuda_ipc (same machine) or rc and gdr_copy (others), that "
               "UCX_NET_DEVICES names the cards near this GPU, and that processes of one machine share an IPC namespace"
             : "check that UCX_TLS allows shm and cma (same machine) or rc (others), that UCX_NET_DEVICES names the "
               "right cards, and that processes of one machine share /dev/shm and may ptrace each other";
}

}  // namespace

double SpeedWatch::slow_below(MemoryKind kind) const {
  if (kind == MemoryKind::kDevice || copy_rate_ == 0) return kSlowBytesPerUs;
  return std::min(kSlowBytesPerUs, kSlowShareOfCopy * copy_rate_);
}

void SpeedWatch::name_peer(PeerId peer, const std::string& called) {
  const auto entry = peers_.find(peer);
  if (entry != peers_.end() && !called.empty()) entry->second.called = called;
}

void SpeedWatch::judge(const Peer& peer, MemoryKind kind, Lane* lane, double bytes_per_us,
                       const std::string& measured_by) {
  if (lane->is_told || bytes_per_us >= slow_below(kind)) return;
  lane->is_told = true;
  advice_.push_back("peer " + peer.called + ": NIXL moves " + name_of(kind) + " to it at " + gigabytes(bytes_per_us) +
                    " at best (" + measured_by +
                    "), so that UCX takes a slow path, such as TCP or a copy through the " + "host; " +
                    remedy_for(kind));
}

void SpeedWatch::probed(PeerId peer, MemoryKind kind, double bytes_per_us, std::size_t bytes) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  Lane& lane = entry->second.lanes[static_cast<std::size_t>(kind)];
  lane.probed = bytes_per_us;
  judge(entry->second, kind, &lane, bytes_per_us, "a probe with writes of " + std::to_string(bytes >> 10) + " KiB");
}

void SpeedWatch::began(PeerId peer, MemoryKind kind, TimePoint now) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  Lane& lane = entry->second.lanes[static_cast<std::size_t>(kind)];
  if (lane.in_flight++ == 0) lane.busy_since = now;
}

void SpeedWatch::ended(PeerId peer, MemoryKind kind, std::size_t bytes, std::size_t runs, TimePoint now) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  Lane& lane = entry->second.lanes[static_cast<std::size_t>(kind)];
  if (lane.in_flight == 0) return;
  --lane.in_flight;
  lane.busy += now - lane.busy_since;
  lane.busy_since = now;
  lane.bytes += bytes;
  lane.runs += runs;
  if (bytes == 0) lane.clear_window();
  if (lane.bytes < (kind == MemoryKind::kDevice ? kDeviceWindow : kHostWindow)) return;
  const std::chrono::duration<double, std::micro> moving = lane.busy - lane.runs * kPerRun;
  const auto moved = static_cast<double>(lane.bytes);
  lane.clear_window();
  // What descriptors explain tells nothing of the path.
  if (moving.count() <= 0) return;
  lane.best = std::max(lane.best, moved / moving.count());
  if (++lane.windows < kWindows) return;
  judge(entry->second, kind, &lane, lane.best, "what it sent, without the time that descriptors take");
  lane.windows = 0;
  lane.best = 0;
}

std::string SpeedWatch::measured(PeerId peer, MemoryKind kind) const {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return {};
  const double rate = entry->second.lanes[static_cast<std::size_t>(kind)].probed;
  return rate == 0 ? std::string() : std::string(name_of(kind)) + " at " + gigabytes(rate) + " by a probe";
}

void SpeedWatch::take_advice(std::vector<std::string>* out) {
  out->insert(out->end(), std::make_move_iterator(advice_.begin()), std::make_move_iterator(advice_.end()));
  advice_.clear();
}

}  // namespace kvt::nixl
