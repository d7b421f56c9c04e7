#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace kvt::nixl {

// Zeroed, resident host memory of its own pages, left out of forked children: a fork would mark pinned pages
// copy-on-write, and the network would go on writing to the page that the parent no longer sees. `size` is rounded up
// to whole pages in `mapped_size`.
Status map_resident(std::size_t size, std::uintptr_t* base, std::size_t* mapped_size);

void unmap(std::uintptr_t base, std::size_t mapped_size);

}  // namespace kvt::nixl
