#include "transport/bounce_transport.h"

#include <string>
#include <utility>

#include "core/credit_scheduler.h"
#include "transport/bounce_path.h"

namespace kvt {

std::unique_ptr<Transport> make_bounce_transport(std::unique_ptr<Transport> base, const BounceOptions& options,
                                                 Status* error) {
  CreditScheduler credits;
  *error = CreditScheduler::create({.arena_bytes = options.arena_bytes,
                                    .max_chunk = options.max_chunk_bytes,
                                    .max_held_per_flow = options.max_inflight_chunks},
                                   &credits);
  if (error->is_ok() && options.request_timeout.count() < 1) {
    *error = Status(StatusCode::kInvalidArgument, "bounce.requestTimeoutMs must be at least 1");
  }
  if (error->is_ok() && (options.gather_blocks < 1 || options.gather_blocks > kMostCopyBlocks)) {
    *error =
        Status(StatusCode::kInvalidArgument, "bounce.gatherBlocks must be 1 to " + std::to_string(kMostCopyBlocks));
  }
  if (!error->is_ok()) return nullptr;
  return std::make_unique<BouncePath>(std::move(base), options, std::move(credits));
}

}  // namespace kvt
