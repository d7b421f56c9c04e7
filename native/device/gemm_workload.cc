#include "device/gemm_workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace kvt {
namespace {

constexpr int kNotTransposed = 0;
constexpr int kTransposed = 1;
constexpr int kBfloat16 = 14;
constexpr int kComputeFloat = 68;
constexpr int kDefaultAlgorithm = -1;
constexpr std::size_t kElementBytes = 2;
constexpr std::size_t kAlignment = 256;
// Scores of one tile stay in the cache between the two products, as in a fused attention; a tile has at least as many
// queries as make a product efficient.
constexpr std::uint64_t kScoreBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kMinQueries = 128;
constexpr std::size_t kPatternBytes = std::size_t{32} << 20;

std::size_t rounded(std::uint64_t elements) {
  return (elements * kElementBytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Elements of each part, in the order in which they lie.
std::array<std::uint64_t, 12> part_elements(const GemmShape& s) {
  const std::uint64_t attended = s.heads * s.head_dim;
  const std::uint64_t kept = s.kv_heads * s.head_dim;
  return {s.hidden * (attended + 2 * kept),
          attended * s.hidden,
          s.hidden * 2 * s.intermediate,
          s.intermediate * s.hidden,
          s.max_context * kept,
          s.max_context * kept,
          s.max_chunk * s.hidden,
          s.max_chunk * (attended + 2 * kept),
          s.max_chunk * attended,
          s.max_chunk * 2 * s.intermediate,
          s.max_chunk * s.hidden,
          std::max(kScoreBytes / kElementBytes, kMinQueries * s.max_context)};
}

// Values of [-1, 1), never the same twice in a row: products of constant data take less power than real ones.
std::vector<std::uint16_t> random_pattern() {
  std::vector<std::uint16_t> out(kPatternBytes / kElementBytes);
  std::uint64_t state = 0x9e3779b97f4a7c15ULL;
  for (std::uint16_t& value : out) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const float uniform = static_cast<float>(static_cast<std::int32_t>(state >> 32)) / 2147483648.0F;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &uniform, sizeof bits);
    value = static_cast<std::uint16_t>(bits >> 16);
  }
  return out;
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): device memory is known by address
void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

Status check_shape(const GemmShape& s) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
  for (const std::uint64_t value :
       {s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.intermediate, s.max_chunk, s.max_context}) {
    if (value == 0 || value > kMost) {
      return Status(StatusCode::kInvalidArgument, "a model's shape has whole numbers from 1 to 2^24");
    }
  }
  if (s.heads % s.kv_heads != 0 || s.max_chunk > s.max_context) {
    return Status(StatusCode::kInvalidArgument,
                  "query heads must be a multiple of KV heads, and a chunk no longer than the prompt");
  }
  return Status::ok();
}

}  // namespace

std::size_t GemmShape::memory_bytes() const {
  std::size_t bytes = 0;
  for (const std::uint64_t elements : part_elements(*this)) bytes += rounded(elements);
  return bytes;
}

Status GemmWorkload::create(std::shared_ptr<const CudaContext> context, const GemmShape& shape,
                            const std::string& library, std::unique_ptr<GemmWorkload>* out) {
  Status status = check_shape(shape);
  if (!status.is_ok()) return status;
  std::unique_ptr<GemmWorkload> made(new GemmWorkload(std::move(context)));
  made->shape_ = shape;
  const CurrentContext current(*made->context_);
  if (!current.status().is_ok()) return current.status();
  status = load_cublas(library, &made->cublas_);
  if (!status.is_ok()) return status;
  // The priority of a default stream, as engines use it: the products take no precedence over transfers.
  status = CudaStream::create(made->context_, StreamPriority::kLow, &made->stream_);
  if (!status.is_ok()) return status;
  status = Cublas::check(made->cublas_->create(&made->handle_), "cublasCreate");
  if (!status.is_ok()) return status;
  status = Cublas::check(made->cublas_->set_stream(made->handle_, made->stream_.handle()), "cublasSetStream");
  if (!status.is_ok()) return status;
  (void)made->cublas_->get_version(made->handle_, &made->version_);
  status = made->allocate();
  if (status.is_ok()) *out = std::move(made);
  return status;
}

GemmWorkload::~GemmWorkload() {
  const CurrentContext current(*context_);
  if (stream_.is_open()) (void)stream_.synchronize();
  if (handle_ != nullptr) (void)cublas_->destroy(handle_);
  if (memory_ != 0) (void)context_->api().cuMemFree(memory_);
}

Status GemmWorkload::allocate() {
  const std::size_t bytes = shape_.memory_bytes();
  Status status = context_->api().check(context_->api().cuMemAlloc(&memory_, bytes), "cuMemAlloc");
  if (!status.is_ok()) {
    return Status(status.code(), "the products need " + std::to_string(bytes >> 20) +
                                     " MiB on the GPU: " + status.message() + "; shorten the prompt or the chunks");
  }
  std::uintptr_t next = memory_;
  const auto elements = part_elements(shape_);
  const std::array<std::uintptr_t*, 12> parts = {&qkv_weights_, &output_weights_, &gate_up_weights_, &down_weights_,
                                                 &keys_,        &values_,         &input_,           &qkv_,
                                                 &attended_,    &gate_up_,        &result_,          &scores_};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    *parts[i] = next;
    next += rounded(elements[i]);
  }
  return fill(bytes);
}

Status GemmWorkload::fill(std::size_t bytes) const {
  const CudaApi& api = context_->api();
  const std::vector<std::uint16_t> pattern = random_pattern();
  const std::size_t first = std::min(bytes, kPatternBytes);
  Status status =
      api.check(api.cuMemcpyHtoDAsync(memory_, pattern.data(), first, stream_.handle()), "cuMemcpyHtoDAsync");
  for (std::size_t done = first; done < bytes && status.is_ok(); done += std::min(done, bytes - done)) {
    status = api.check(api.cuMemcpyDtoDAsync(memory_ + done, memory_, std::min(done, bytes - done), stream_.handle()),
                       "cuMemcpyDtoDAsync");
  }
  return status.is_ok() ? stream_.synchronize() : status;
}

// output[tokens, columns] = input[tokens, depth] * weights[columns, depth]^T, in cuBLAS's column-major words.
Status GemmWorkload::multiply(const Product& p, std::uint64_t tokens) const {
  // Keeps what products of products become of order one.
  const float alpha = 1.0F / std::sqrt(static_cast<float>(p.depth));
  const float beta = 0;
  return Cublas::check(
      cublas_->gemm(handle_, kTransposed, kNotTransposed, static_cast<int>(p.columns), static_cast<int>(tokens),
                    static_cast<int>(p.depth), &alpha, at(p.weights), kBfloat16, static_cast<int>(p.depth), at(p.input),
                    kBfloat16, static_cast<int>(p.input_width), &beta, at(p.output), kBfloat16,
                    static_cast<int>(p.columns), kComputeFloat, kDefaultAlgorithm),
      "cublasGemmEx");
}

Status GemmWorkload::attend(std::uint64_t tokens, std::uint64_t keys) const {
  const std::uint64_t group = shape_.heads / shape_.kv_heads;
  const std::uint64_t dim = shape_.head_dim;
  const std::uint64_t kept = shape_.kv_heads * dim;
  const std::uint64_t width = shape_.heads * dim + 2 * kept;
  const std::uint64_t rows_that_fit = kScoreBytes / (keys * kElementBytes);
  const std::uint64_t rows = std::min(tokens, std::max(kMinQueries, rows_that_fit));
  const std::uint64_t heads = std::clamp<std::uint64_t>(rows_that_fit / rows, 1, group);
  const float score_scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const float value_scale = 1.0F / static_cast<float>(keys);
  const float beta = 0;
  const auto as_int = [](std::uint64_t value) { return static_cast<int>(value); };
  for (std::uint64_t head = 0; head < shape_.heads; head += std::min(heads, group - head % group)) {
    const std::uint64_t count = std::min(heads, group - head % group);
    const std::uint64_t kv_at = head / group * dim * kElementBytes;
    for (std::uint64_t row = 0; row < tokens; row += rows) {
      const std::uint64_t queries = std::min(rows, tokens - row);
      const std::uintptr_t query_at = qkv_ + (row * width + head * dim) * kElementBytes;
      const std::uintptr_t out_at = attended_ + (row * shape_.heads * dim + head * dim) * kElementBytes;
      const auto score_stride = static_cast<long long>(queries * keys);
      Status status = Cublas::check(
          cublas_->gemm_batched(handle_, kTransposed, kNotTransposed, as_int(keys), as_int(queries), as_int(dim),
                                &score_scale, at(keys_ + kv_at), kBfloat16, as_int(kept), 0, at(query_at), kBfloat16,
                                as_int(width), static_cast<long long>(dim), &beta, at(scores_), kBfloat16, as_int(keys),
                                score_stride, as_int(count), kComputeFloat, kDefaultAlgorithm),
          "cublasGemmStridedBatchedEx");
      if (!status.is_ok()) return status;
      status = Cublas::check(
          cublas_->gemm_batched(handle_, kNotTransposed, kNotTransposed, as_int(dim), as_int(queries), as_int(keys),
                                &value_scale, at(values_ + kv_at), kBfloat16, as_int(kept), 0, at(scores_), kBfloat16,
                                as_int(keys), score_stride, &beta, at(out_at), kBfloat16, as_int(shape_.heads * dim),
                                static_cast<long long>(dim), as_int(count), kComputeFloat, kDefaultAlgorithm),
          "cublasGemmStridedBatchedEx");
      if (!status.is_ok()) return status;
    }
  }
  return Status::ok();
}

Status GemmWorkload::enqueue(std::uint64_t chunk, std::uint64_t before) {
  if (chunk == 0 || chunk > shape_.max_chunk || before > shape_.max_context || chunk > shape_.max_context - before) {
    return Status(StatusCode::kInvalidArgument, "a chunk of " + std::to_string(chunk) + " tokens after " +
                                                    std::to_string(before) + " does not fit the workload's " +
                                                    std::to_string(shape_.max_chunk) + " and " +
                                                    std::to_string(shape_.max_context));
  }
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  const std::uint64_t attended = shape_.heads * shape_.head_dim;
  const std::uint64_t width = attended + 2 * shape_.kv_heads * shape_.head_dim;
  const std::uint64_t middle = shape_.intermediate;
  const Product project{qkv_weights_, input_, shape_.hidden, qkv_, width, shape_.hidden};
  const Product gather{output_weights_, attended_, attended, result_, shape_.hidden, attended};
  const Product gate_up{gate_up_weights_, input_, shape_.hidden, gate_up_, 2 * middle, shape_.hidden};
  const Product down{down_weights_, gate_up_, 2 * middle, result_, shape_.hidden, middle};
  for (std::uint64_t layer = 0; layer < shape_.layers; ++layer) {
    Status status = multiply(project, chunk);
    if (status.is_ok()) status = attend(chunk, before + chunk);
    if (status.is_ok()) status = multiply(gather, chunk);
    if (status.is_ok()) status = multiply(gate_up, chunk);
    if (status.is_ok()) status = multiply(down, chunk);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

}  // namespace kvt
