#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/copy_explanation.h"
#include "transport/transport.h"

namespace kvt {

// Role: tells, once for each peer and cause, that slices to it are moved slower than they would be if their user
// changed
//   something, in the words of explain_copy.
// Threading: the progress thread.
class CopyAdvice {
 public:
  enum class Cause : std::uint8_t { kUnaligned, kSmallPieces, kDescriptors };

  // What advice calls a peer, which it is not told before.
  void name_peer(PeerId peer, const std::string& name);
  void remove_peer(PeerId peer);

  bool has_told(PeerId peer, Cause cause) const { return told_.contains({peer, cause}); }
  // A slice that is moved so, for a cause that can be mended.
  void tell(PeerId peer, Cause cause, const CopySituation& situation, std::span<const PlanGroup> groups);

  // Appends what was told since the last call.
  void take(std::vector<std::string>* out);

 private:
  std::unordered_map<PeerId, std::string> names_;
  std::set<std::pair<PeerId, Cause>> told_;
  std::vector<std::string> texts_;
};

}  // namespace kvt
