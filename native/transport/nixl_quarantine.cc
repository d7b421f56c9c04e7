#include "transport/nixl_quarantine.h"

#include <algorithm>

namespace kvt::nixl {

void Quarantine::hold(BatchId batch, PeerId peer, XferReq request) {
  entries_.push_back({.batch = batch, .peer = peer, .request = request, .drains_at = std::nullopt});
}

void Quarantine::begin_grace(PeerId peer, TimePoint until, const Release& release) {
  for (Entry& entry : entries_) {
    // A peer id may be in its grace time already and be used again; those entries keep their own deadline.
    if (entry.peer != peer || entry.drains_at.has_value()) continue;
    release(entry.request);
    entry.request = nullptr;
    entry.drains_at = until;
  }
}

void Quarantine::take_drained(TimePoint now, std::vector<BatchId>* out) {
  const auto is_drained = [now](const Entry& entry) { return entry.drains_at.has_value() && *entry.drains_at <= now; };
  for (const Entry& entry : entries_) {
    if (is_drained(entry)) out->push_back(entry.batch);
  }
  std::erase_if(entries_, is_drained);
}

std::optional<TimePoint> Quarantine::next_drain() const {
  std::optional<TimePoint> next;
  for (const Entry& entry : entries_) {
    if (entry.drains_at.has_value() && (!next.has_value() || *entry.drains_at < *next)) next = entry.drains_at;
  }
  return next;
}

}  // namespace kvt::nixl
