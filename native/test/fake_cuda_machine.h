#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "device/cuda_abi.h"
#include "fake_cuda_orders.h"

namespace kvt::test {

// Role: the GPUs of the stand-in: host memory that other processes can map, and streams whose work this process's own
//   threads do, whenever one of them calls the driver.
// Threading: callers hold `mutex` throughout; nothing runs in between.
class FakeCudaMachine {
 public:
  struct EventState {
    std::uint64_t recorded = 0;
    std::uint64_t reached = 0;
    bool is_of_forward = false;
  };
  // False: it must wait, and what is queued behind it with it.
  using Work = std::function<bool()>;
  struct StreamState {
    std::deque<Work> queue;
    bool is_forward = false;
  };
  struct Memory {
    std::size_t bytes = 0;
    int file = -1;  // of what this process allocated itself
    int device = 0;
    bool counts = false;
  };

  // Leaked on purpose: threads may call the driver while the process ends.
  static FakeCudaMachine& get();

  std::mutex mutex;

  void queue(cuda::Stream stream, Work work);
  // Runs what can run now.
  void run(const FakeCudaOrders& orders);
  bool is_idle(cuda::Stream stream) const;

  cuda::Stream add_stream(bool is_forward);
  void remove_stream(cuda::Stream stream);
  bool is_forward(cuda::Stream stream) const { return state_of(stream).is_forward; }

  cuda::Result allocate(std::size_t bytes, int device, const FakeCudaOrders& orders, std::uintptr_t* out);
  // A mapping of `file` at `wanted` (0: anywhere) that does not count as memory in use.
  std::uintptr_t map(int file, std::size_t bytes, int device, std::uintptr_t wanted);
  bool free(std::uintptr_t base);
  const Memory* find(std::uintptr_t address, std::uintptr_t* base) const;

  // Memory that has no address yet; 0 when there is none left.
  std::uint64_t create(std::size_t bytes, const FakeCudaOrders& orders);
  std::uint64_t import(int file);
  Memory* handle(std::uint64_t handle);
  void release(std::uint64_t handle);

  std::size_t used() const;
  static std::size_t capacity(const FakeCudaOrders& orders);

  std::map<std::string, std::uint64_t> calls;

 private:
  const StreamState& state_of(cuda::Stream stream) const { return *streams_.at(stream); }

  std::map<cuda::Stream, std::unique_ptr<StreamState>> streams_;
  std::map<std::uintptr_t, Memory> memory_;
  std::map<std::uint64_t, Memory> handles_;
  std::uint64_t last_handle_ = 0;
};

}  // namespace kvt::test
