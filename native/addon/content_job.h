#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "addon/environment.h"
#include "addon/napi_setup.h"
#include "core/page_content.h"

namespace kvt {

// A job together with what keeps its memory mapped until it has run.
struct LeasedJob {
  ContentJob job;
  std::vector<MemoryLease> leases;
  int device = -1;  // whose kernels do the work; host memory otherwise
  std::shared_ptr<OpenDevices> devices;
};

// The job in the arguments from `from` on: entries, slots, [tokensPerBlock, first block, tokenBegin], seeds. Throws for
// one that does not fit memory of this environment.
std::shared_ptr<LeasedJob> read_job(const Napi::CallbackInfo& info, std::size_t from, const Environment& environment);
inline constexpr std::size_t kJobArguments = 4;

}  // namespace kvt
