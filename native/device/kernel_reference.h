#pragma once

#include <cstdint>

#include "device/kernels/kernel_abi.h"

namespace kvt {

// What the kernels do, on the host and over host addresses: same arguments, same bytes. They walk groups, pairs and
// pieces one after another and know nothing of tiles.
void reference_copy(const CopyArguments& arguments);
void reference_copy_summed(const CopyArguments& arguments);
void reference_gather(const CopyArguments& arguments);
void reference_scatter(const CopyArguments& arguments);

}  // namespace kvt
