#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/copy_plan.h"
#include "device/cuda_context.h"
#include "device/cuda_event.h"
#include "device/cuda_stream.h"
#include "device/device_buffer_pool.h"
#include "device/page_kernels.h"
#include "transport/bounce_mover.h"

namespace kvt {

// Gathers and scatters with kernels of the arena's device.
// Ordering: jobs that wait for no event share a stream and run in order; gathers whose event was not reached go on one
//   of their own, so that nothing else waits for a forward step. A launched job cannot be dropped.
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

  const std::shared_ptr<const CudaContext>& context() const { return context_; }

 private:
  struct Table {
    std::shared_ptr<const FragmentTable> original;  // keeps its address from being given to another table
    CopyTable copy;
    DeviceBuffer buffer;
  };
  struct Running {
    Job job;
    DeviceBuffer slots;
    CudaEvent done;
  };

  Status launch(const Job& job, const CudaStream& stream, DeviceBuffer* slots);
  Status find_table(const std::shared_ptr<const FragmentTable>& table, const Table** out);
  Status take_event(CudaEvent* out);
  void drop_unused_tables();

  int device_;
  unsigned blocks_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<PageKernels> kernels_;
  std::optional<DeviceBufferPool> buffers_;
  CudaStream ready_stream_;
  CudaStream waiting_stream_;
  CudaStream idle_stream_;  // for uploads that are waited for
  std::unordered_map<const FragmentTable*, Table> tables_;
  std::vector<CudaEvent> spare_events_;
  std::vector<Running> running_;
  // Jobs of a lost device. Nothing says that they ended, so what they use is never freed.
  std::vector<Running> lost_;
  std::vector<Ended> failed_;
};

}  // namespace kvt
