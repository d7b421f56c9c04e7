#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/abort_words.h"
#include "device/device_buffer_pool.h"
#include "device/stream_mark.h"
#include "transport/transport.h"

namespace kvt {

// Role: what is queued on a p2p agent's streams: how each batch ends, and what it uses until then.
// Why: a batch that was taken back is over for its caller before the device has passed it, so that what it uses
//   outlives it here.
// Ordering: batches of one lane end in the order they were posted, except that those taken back end at once. What waits
//   for no event goes by two lanes in turn, so that one slice begins while the one before it ends (two H200, slices of
//   8 MiB: 340 GB/s instead of 288).
// Why everything that can fail comes first: a launch cannot be taken back, and a batch whose end nobody can tell keeps
//   pages and mappings for ever. begin() takes what a batch needs; once something is queued only a lost device keeps
//   its end from being known.
// Ownership: events, slots and abort words, from begin() until the device has run the batch.
// Threading: the progress thread.
class P2pBatches {
 public:
  // A stream whose batches the device runs in order, so that only the oldest is worth asking the driver about: 64
  // queries of a microsecond each would hold up the next launch.
  struct Lane {
    CudaStream stream;
    std::deque<BatchId> order;
  };
  // What was queued.
  struct Queued {
    PeerId peer = 0;
    DeviceBuffer slots;
    Lane* lane = nullptr;
    AbortWord* word = nullptr;
    StreamMark done;
    // Its blocks ask the word before they touch anything: it can be taken back as long as none has begun.
    bool is_gated = false;
    // It takes all the blocks that the two lanes share: nothing of the other lane may run beside it.
    bool is_alone = false;
  };
  struct Ending {
    BatchResult result;
    PeerId peer = 0;
  };

  Status open(const std::shared_ptr<const CudaContext>& context);

  // For what waits for no event: the lane that has less to do.
  Lane& ready();
  std::size_t ready_depth() const { return ready_[0].order.size() + ready_[1].order.size(); }
  // For what still waits for its event.
  Lane& waiting() { return waiting_; }
  // How many of `most` blocks a launch takes that is queued on its ready lane next: all when nothing else is under way,
  // otherwise this lane's half. Sets `is_alone`.
  Status share_blocks(unsigned most, Queued* batch, unsigned* blocks);
  DeviceBufferPool& buffers() { return *buffers_; }
  // Its word and its mark. Drop it when this or anything up to the upload of its slots fails.
  Status begin(Queued* batch);

  // Nothing of it reached the device.
  void drop(Queued batch);
  // Nothing that touches a page was queued, but its slots may still be on their way by `stream`.
  void drop_after(Queued batch, const CudaStream& stream);
  // At least one of its kernels is queued. `error`: why the others are not.
  BatchResult queued(BatchId id, Queued batch, Status error);
  Ending poll(BatchId id);
  // See Transport::cancel.
  void cancel(BatchId id);
  // Frees what batches used that were taken back or dropped and that the device has passed.
  void retire();

  bool has_any() const { return !batches_.empty(); }
  // Something that is over for its caller, and touches no page, is not over for the device.
  bool has_unretired() const { return !revoked_.empty() || !dropped_.empty(); }
  bool has_lost() const { return !lost_.empty(); }

 private:
  enum class Stopping : std::uint8_t { kNot, kAsked, kRevoked };
  struct Batch {
    Queued queued;
    Stopping stopping = Stopping::kNot;
    Status error;  // why a part of it was not queued
  };

  static BatchResult failed(const Batch& batch);
  Status take_event(CudaEvent* out);
  void retire(Lane* lane);
  void free(Queued batch);

  std::shared_ptr<const CudaContext> context_;
  std::optional<DeviceBufferPool> buffers_;
  std::optional<AbortWords> words_;
  std::array<Lane, 2> ready_;
  Lane waiting_;
  std::size_t last_ready_ = 1;
  // The last batch that was alone, until the other lane has been told to wait for it.
  std::optional<BatchId> alone_;
  std::vector<CudaEvent> spare_events_;
  std::unordered_map<BatchId, Batch> batches_;
  std::unordered_map<BatchId, Batch> revoked_;  // over for their callers, not yet for the device
  std::vector<Queued> dropped_;
  // Batches that a lost device left behind. Nothing says that they ended, so what they use is never freed.
  std::vector<Batch> lost_;
  RefusedQueries refused_;
};

}  // namespace kvt
