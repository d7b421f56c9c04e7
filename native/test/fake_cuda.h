#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace kvt::test {

// The stand-in for the driver (fake_cuda.cc) in this process, under orders (fake_cuda_orders.h). Loaded before main, so
// that a driver the machine has is not used.
class FakeCuda {
 public:
  // A GPU that works, whatever an earlier test ordered.
  FakeCuda() { order({}); }

  // Holds from now on, instead of what was ordered before.
  static void order(std::initializer_list<std::string> orders);
  // Of a call of the driver, or launches of a kernel.
  static std::uint64_t calls(const char* name);
};

}  // namespace kvt::test
