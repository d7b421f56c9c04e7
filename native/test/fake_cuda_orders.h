#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvt::test {

// What a test tells the stand-in for the driver (fake_cuda.cc), one order a line, in the file that KVT_FAKE_CUDA names.
// The stand-in reads it again at every call, so that another process or another language can give orders too:
//
//   version N       the driver's version (13000)
//   devices N       GPUs (1)
//   capability N    their compute capability, N.0 (9)
//   memory N        bytes of each (512 MiB)
//   ordering N      of GPUDirect RDMA writes (200: they need no flush)
//   pcie            the GPUs are not joined by NVLink
//   withhold NAME   the driver does not have this call
//   fail NAME N     this call fails with N
//   refuse NAME N   the N-th call of this name, counted since the library was loaded, fails for want of memory
//   hold            what is queued on streams of high priority (a forward) does not run
//   hide            no event of another stream is seen as reached, whatever ran
//   hide-from N     the same, from the N-th launch of a kernel on
//   lost            the device is lost: what is asked of it fails
class FakeCudaOrders {
 public:
  // Nothing in the file, or no file: a GPU that works.
  static FakeCudaOrders read();

  bool has(const std::string& order) const { return text_.find("\n" + order + "\n") != std::string::npos; }
  // The number behind `order`.
  std::optional<std::int64_t> number(const std::string& order) const;

 private:
  std::string text_;
};

}  // namespace kvt::test
