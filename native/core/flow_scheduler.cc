#include "core/flow_scheduler.h"

#include <algorithm>

namespace kvt {

void FlowScheduler::put_last(FlowId id, Flow* flow) {
  ring_.push_back(id);
  flow->place = std::prev(ring_.end());
  flow->state = FlowState::kInRing;
}

void FlowScheduler::push(FlowId flow, ItemId item) {
  const auto [entry, is_new] = flows_.try_emplace(flow);
  entry->second.items.push_back(item);
  if (is_new) put_last(flow, &entry->second);
}

std::optional<ItemId> FlowScheduler::head() const {
  if (ring_.empty()) return std::nullopt;
  return flows_.at(ring_.front()).items.front();
}

void FlowScheduler::end_turn() { ring_.splice(ring_.end(), ring_, ring_.begin()); }

void FlowScheduler::finish_head() {
  const FlowId id = ring_.front();
  Flow& flow = flows_.at(id);
  flow.items.pop_front();
  if (!flow.items.empty()) {
    end_turn();
    return;
  }
  ring_.pop_front();
  flows_.erase(id);
}

void FlowScheduler::park() {
  flows_.at(ring_.front()).state = FlowState::kParked;
  ring_.pop_front();
}

void FlowScheduler::wake(FlowId flow) {
  const auto entry = flows_.find(flow);
  if (entry != flows_.end() && entry->second.state == FlowState::kParked) put_last(flow, &entry->second);
}

bool FlowScheduler::remove(FlowId flow, ItemId item) {
  const auto entry = flows_.find(flow);
  if (entry == flows_.end()) return false;
  std::deque<ItemId>& items = entry->second.items;
  const auto at = std::find(items.begin(), items.end(), item);
  if (at == items.end()) return false;
  const bool was_head = at == items.begin();
  items.erase(at);
  if (items.empty()) {
    if (entry->second.state == FlowState::kInRing) ring_.erase(entry->second.place);
    flows_.erase(entry);
  } else if (was_head) {
    wake(flow);
  }
  return true;
}

}  // namespace kvt
