#include "transport/copy_advice.h"

#include <iterator>

namespace kvt {

void CopyAdvice::name_peer(PeerId peer, const std::string& name) {
  if (!name.empty()) names_[peer] = "peer " + name;
}

void CopyAdvice::remove_peer(PeerId peer) {
  names_.erase(peer);
  std::erase_if(told_, [peer](const auto& entry) { return entry.first == peer; });
}

void CopyAdvice::tell(PeerId peer, Cause cause, const CopySituation& situation, std::span<const PlanGroup> groups) {
  if (!told_.emplace(peer, cause).second) return;
  const auto name = names_.find(peer);
  const CopyExplanation found = explain_copy(situation, groups);
  texts_.push_back((name == names_.end() ? "a peer" : name->second) + ": " + found.reason + "; " + found.remedy);
}

void CopyAdvice::take(std::vector<std::string>* out) {
  out->insert(out->end(), std::make_move_iterator(texts_.begin()), std::make_move_iterator(texts_.end()));
  texts_.clear();
}

}  // namespace kvt
