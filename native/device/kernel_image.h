#pragma once

#include <cstddef>
#include <span>

namespace kvt {

// The fat binary of device/kernels that was built in; empty when the build had no nvcc.
std::span<const std::byte> kernel_image();

}  // namespace kvt
