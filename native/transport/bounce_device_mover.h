#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/copy_plan.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"
#include "device/device_buffer_pool.h"
#include "device/page_kernels.h"
#include "device/stream_mark.h"
#include "transport/bounce_mover.h"

namespace kvt {

// Gathers and scatters with kernels of the arena's device.
// Ordering: gathers run in order, and so do scatters, beside each other; none of them waits for a forward step. A
//   launched job cannot be dropped. What a network card wrote is flushed, where the GPU demands it, before the scatter
//   that reads it is launched.
class BounceDeviceMover final : public BounceMover {
 public:
  // `blocks` bounds the multiprocessors that one job takes.
  BounceDeviceMover(int device, unsigned blocks) : device_(device), blocks_(blocks) {}
  ~BounceDeviceMover() override;

  Status open() override;
  void start(Job job) override;
  void drop(JobId job) override { (void)job; }
  void work(std::vector<Ended>* out) override;
  std::optional<TimePoint> next_wakeup(TimePoint now) const override;
  bool has_lost() const override { return !lost_.empty(); }

  const std::shared_ptr<const CudaContext>& context() const { return context_; }

 private:
  struct Table {
    std::shared_ptr<const FragmentTable> original;  // keeps its address from being given to another table
    CopyTable copy;
    DeviceBuffer buffer;
    // Until it was seen reached, each launch waits for it on the device.
    CudaEvent uploaded;
    bool is_uploaded = false;
  };
  struct Running {
    Job job;
    DeviceBuffer slots;
    StreamMark done;
  };
  // What was uploaded for nothing.
  struct Spent {
    DeviceBuffer buffer;
    StreamMark passed;
  };

  // Everything that can fail while the device is well; queues nothing that a job is part of.
  Status prepare(const Job& job, DeviceBuffer* slots, std::vector<Table*>* tables);
  // A job of which this fails does not run: its kernel is queued last.
  Status launch(const Job& job, const CudaStream& stream, const DeviceBuffer& slots, const std::vector<Table*>& tables);
  Status find_table(const std::shared_ptr<const FragmentTable>& table, Table** out);
  Status take_event(CudaEvent* out);
  void drop_unused_tables();
  void free_spent();

  int device_;
  unsigned blocks_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<PageKernels> kernels_;
  std::optional<DeviceBufferPool> buffers_;
  bool must_flush_ = false;
  CudaStream gather_stream_;
  CudaStream scatter_stream_;
  CudaStream upload_stream_;  // tables, which every other stream reads
  std::unordered_map<const FragmentTable*, Table> tables_;
  std::vector<CudaEvent> spare_events_;
  std::vector<Running> running_;
  // Jobs of a lost device. Nothing says that they ended, so what they use is never freed.
  std::vector<Running> lost_;
  std::vector<Spent> spent_;
  RefusedQueries refused_;
  std::vector<Ended> failed_;
};

}  // namespace kvt
