#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "engine/submission.h"
#include "transport/transport.h"

namespace kvt {

struct CloseReport {
  bool drained = true;          // false: memory stays mapped and registered, on purpose
  std::size_t outstanding = 0;  // submissions and memory uses that had not ended at the deadline
};

// Replies run on the progress thread, each exactly once.
using RegionReply = std::function<void(const Status&, const Region&)>;
using MetadataReply = std::function<void(const Status&, std::vector<std::byte>)>;
using PeerReply = std::function<void(const Status&, const std::vector<Region>&, const PeerPaths&)>;
using StatusReply = std::function<void(const Status&)>;
using DoneReply = std::function<void()>;
using CloseReply = std::function<void(const CloseReport&)>;

struct AllocateRegion {
  std::size_t size = 0;
  RegionReply reply;
  int device = -1;  // a GPU's number, or host memory
};
// Memory that the caller owns. The reply names the region as it was given.
struct RegisterRegion {
  Region region;
  RegionReply reply;
};
struct GetMetadata {
  MetadataReply reply;
};
struct AddPeer {
  PeerId peer = 0;
  std::vector<std::byte> metadata;
  PeerReply reply;
  std::string name = {};  // for advice; may be empty
};
struct RemovePeer {
  PeerId peer = 0;
  DoneReply reply;
};
struct CancelSubmission {
  SubmissionId submission = 0;
};
struct ExpectInbound {
  PeerId peer = 0;
  Ticket ticket = 0;
  std::vector<InboundGroup> groups;
  StatusReply reply;
};
// Answered once nothing is scattered under the ticket any more.
struct EndInbound {
  PeerId peer = 0;
  Ticket ticket = 0;
  DoneReply reply;
};
struct EventsChanged {};
// A kEnded notice with this id follows a reply that is ok, unless the watch is dropped before.
struct WatchProcess {
  WatchId watch = 0;
  std::vector<std::byte> metadata;
  StatusReply reply;
};
struct FlushInbound {
  StatusReply reply;
};
struct UnwatchProcess {
  WatchId watch = 0;
};
struct CloseAgent {
  TimePoint deadline;
  CloseReply reply;
};

using Command =
    std::variant<AllocateRegion, RegisterRegion, GetMetadata, AddPeer, RemovePeer, Submission, CancelSubmission,
                 ExpectInbound, EndInbound, EventsChanged, WatchProcess, UnwatchProcess, FlushInbound, CloseAgent>;

}  // namespace kvt
