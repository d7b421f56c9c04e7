#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/submission.h"
#include "transport/transport.h"

namespace kvt::test {

struct PostedBatch {
  BatchId id = 0;
  PeerId peer = 0;
  std::vector<Run> runs;
};

// A transport that does nothing until a test says how each batch ends.
class FakeTransport final : public Transport {
 public:
  Status open() override { return open_status; }
  Status allocate_region(std::size_t size, Region* out) override {
    *out = {0x100000, size};
    return Status::ok();
  }
  Status metadata(std::vector<std::byte>* out) override {
    out->assign(3, std::byte{7});
    return Status::ok();
  }
  Status begin_add_peer(PeerId peer, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return Status(StatusCode::kTransport, "empty metadata");
    peers.emplace(peer, PeerState::kConnecting);
    return Status::ok();
  }
  PeerState poll_peer(PeerId peer, Status* error) override {
    const PeerState state = connects ? PeerState::kReady : peers.at(peer);
    if (state == PeerState::kFailed) *error = Status(StatusCode::kPeerLost, "it went away");
    return state;
  }
  void remove_peer(PeerId peer) override {
    for (const PostedBatch& batch : posted) {
      if (batch.peer == peer && in_flight.contains(batch.id)) removed_too_early = true;
    }
    removed.push_back(peer);
  }
  bool peer_owns(PeerId, std::uintptr_t, std::size_t) const override { return true; }
  std::vector<Region> peer_regions(PeerId) const override { return {{0x900000, 4096}}; }
  BatchLimits limits() const override { return batch_limits; }
  BatchResult post(BatchId batch, PeerId peer, std::span<const Run> runs) override {
    posted.push_back({batch, peer, {runs.begin(), runs.end()}});
    if (post_result) return *post_result;
    in_flight.insert(batch);
    return {BatchState::kInFlight, false, {}};
  }
  BatchResult poll(BatchId batch) override {
    const auto result = results.find(batch);
    if (result == results.end()) return {BatchState::kInFlight, false, {}};
    in_flight.erase(batch);
    return result->second;
  }
  void take_drained(std::vector<BatchId>* out) override {
    out->insert(out->end(), drained.begin(), drained.end());
    drained.clear();
  }
  Status send_message(PeerId peer, std::span<const std::byte> bytes) override {
    sent.push_back({peer, {bytes.begin(), bytes.end()}});
    return Status::ok();
  }
  void take_messages(std::vector<Message>* out) override {
    for (Message& message : messages) out->push_back(std::move(message));
    messages.clear();
  }
  bool is_at_rest() const override { return at_rest; }
  void progress() override {}
  std::optional<TimePoint> next_wakeup(TimePoint now) const override {
    if (in_flight.empty() && drained.empty()) return std::nullopt;
    return now + std::chrono::microseconds(200);
  }
  bool close() override {
    is_closed = true;
    return closes_drained;
  }

  void finish(BatchId batch) { results[batch] = {BatchState::kDone, false, {}}; }
  void fail(BatchId batch, bool may_still_land) {
    results[batch] = {BatchState::kFailed, may_still_land, Status(StatusCode::kTransport, "broken")};
  }

  Status open_status;
  BatchLimits batch_limits{.max_runs = 4, .max_bytes = 4096, .max_in_flight = 2};
  bool connects = true;
  bool closes_drained = true;
  bool is_closed = false;
  std::atomic<bool> at_rest{true};
  std::vector<Message> sent;
  std::vector<Message> messages;
  bool removed_too_early = false;
  std::optional<BatchResult> post_result;
  std::vector<PostedBatch> posted;
  std::set<BatchId> in_flight;
  std::map<BatchId, BatchResult> results;
  std::vector<BatchId> drained;
  std::map<PeerId, PeerState> peers;
  std::vector<PeerId> removed;
};

// A submission of `slots` scattered slots of `bytes` bytes: as many runs, none of which touch.
inline Submission submission_of(SubmissionId id, PeerId peer, FlowId flow, std::int32_t slots,
                                std::size_t bytes = 1024) {
  Fragment fragment;
  fragment.source = {.base = 0x100000, .slot_bytes = bytes, .slot_stride = 2 * bytes, .slot_count = 1 << 20};
  fragment.destination = {.base = 0x900000, .slot_bytes = bytes, .slot_stride = 2 * bytes, .slot_count = 1 << 20};
  fragment.bytes = bytes;
  fragment.count = 1;
  auto table = std::make_shared<FragmentTable>();
  (void)!FragmentTable::create({fragment}, table.get()).is_ok();
  PlanGroup group{table, {}};
  for (std::int32_t i = 0; i < slots; ++i) group.slot_pairs.insert(group.slot_pairs.end(), {i, i});
  Submission submission;
  submission.id = id;
  submission.peer = peer;
  submission.flow = flow;
  submission.groups.push_back(std::move(group));
  return submission;
}

}  // namespace kvt::test
