#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/stream_mark.h"
#include "transport/transport.h"

namespace kvt {

// Role: long runs on a GPU's copy engines.
// Why: what is queued there cannot be taken back, so that few bytes are queued ahead, and a cancel waits for those
// only. Ordering: batches are queued in the order they were added, on a stream of their own, beside the kernels'
// streams. Ownership: the stream and its events; the memory on both sides is the transport's, and stays while a batch
// is here. Threading: the progress thread.
class EngineCopies {
 public:
  struct Copy {
    std::uintptr_t destination = 0;
    std::uintptr_t source = 0;
    std::size_t bytes = 0;
  };
  struct Ending {
    BatchResult result;
    PeerId peer = 0;
  };

  Status open(const std::shared_ptr<const CudaContext>& context);

  BatchResult add(BatchId id, PeerId peer, std::vector<Copy> copies);
  bool has(BatchId id) const { return batches_.contains(id); }
  Ending poll(BatchId id);
  // See Transport::cancel.
  void cancel(BatchId id);

  bool has_any() const { return !batches_.empty(); }
  // A lost device left something queued. Nothing says that it ended. A call that the driver refused is no loss: its
  // batch ends with what was queued of it before, and others go on.
  bool has_lost() const { return loss_.has_value(); }

 private:
  struct Batch {
    PeerId peer = 0;
    std::vector<Copy> left;  // last first; the last may be what remains of one
    std::size_t pieces = 0;  // queued, not yet reached
    bool is_stopped = false;
    Status error;  // why the rest of it was not queued
  };
  // What one event stands for.
  struct Piece {
    BatchId batch = 0;
    std::size_t bytes = 0;
    StreamMark reached;
  };

  void collect();
  void feed();
  // After a failure what was queued before is a piece all the same.
  Status queue_piece(BatchId id, Batch* batch);

  std::shared_ptr<const CudaContext> context_;
  CudaStream stream_;
  std::unordered_map<BatchId, Batch> batches_;
  std::deque<BatchId> to_queue_;
  std::deque<Piece> pieces_;
  std::size_t queued_bytes_ = 0;
  std::vector<CudaEvent> spare_events_;
  std::optional<Status> loss_;
  RefusedQueries refused_;
};

}  // namespace kvt
