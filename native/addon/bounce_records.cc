#include "addon/bounce_records.h"

#include <algorithm>
#include <limits>

#include "addon/arguments.h"

namespace kvt {
namespace {

constexpr std::size_t kBounceRecord = 9;
// Beyond this a timeout is none, and the clock's own range ends.
constexpr std::uint64_t kLongestMs = 1'000'000'000'000;

}  // namespace

BounceOptions read_bounce_options(Napi::Env env, const double* numbers, std::size_t count) {
  if (count != kBounceRecord) throw_argument(env, "bounce must be one record");
  BounceOptions options;
  options.arena_bytes = to_size(env, numbers[0], "bounce arena bytes");
  options.max_chunk_bytes = to_size(env, numbers[1], "bounce.maxChunkSize");
  options.min_descriptor_count = to_size(env, numbers[2], "bounce.minDescriptorCount");
  options.max_average_descriptor_bytes = to_size(env, numbers[3], "bounce.maxAverageDescriptorSize");
  options.max_inflight_chunks = to_size(env, numbers[4], "bounce.maxInflightChunksPerRequest");
  options.request_timeout =
      std::chrono::milliseconds(std::min(to_size(env, numbers[5], "bounce.requestTimeoutMs"), kLongestMs));
  options.gather_blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(to_size(env, numbers[6], "bounce.gatherBlocks"), std::numeric_limits<unsigned>::max()));
  options.is_forced = numbers[7] != 0;
  options.has_thresholds = numbers[8] != 0;
  return options;
}

}  // namespace kvt
