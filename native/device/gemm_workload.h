#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "device/cublas.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"

namespace kvt {

// The matrices of a transformer's layer and how many layers there are.
struct GemmShape {
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t intermediate = 0;
  // The largest chunk, and the longest prompt it may end.
  std::uint64_t max_chunk = 0;
  std::uint64_t max_context = 0;

  // Of everything that a workload allocates.
  std::size_t memory_bytes() const;
};

// Role: the matrix products of prefill at their true shapes, in bfloat16 with random values: a GPU as busy, in its
//   multiprocessors and its memory, as an engine makes it. Per layer: the fused Q, K, V projection; for each tile of
//   queries the scores against all keys so far and their product with the values; the output projection; gate and up;
//   down. Softmax, norms and activations are left out, and every layer uses the same weights and keys, which are far
//   larger than the cache.
// Ownership: owns its memory, stream and cuBLAS handle. destroyed only after its stream has run out: the destructor
//   waits.
// Threading: one thread at a time, never the JS thread: enqueue blocks when the driver's queue is full.
class GemmWorkload {
 public:
  // kInvalidArgument for shapes that are no transformer's; kResource when the device has not the memory.
  static Status create(std::shared_ptr<const CudaContext> context, const GemmShape& shape, const std::string& library,
                       std::unique_ptr<GemmWorkload>* out);
  ~GemmWorkload();
  GemmWorkload(const GemmWorkload&) = delete;
  GemmWorkload& operator=(const GemmWorkload&) = delete;

  const CudaStream& stream() const { return stream_; }
  const std::string& library() const { return cublas_->library; }
  int version() const { return version_; }

  // Queues the products of `chunk` prompt tokens that follow `before` others, and returns.
  Status enqueue(std::uint64_t chunk, std::uint64_t before);

 private:
  struct Product {
    std::uintptr_t weights;
    std::uintptr_t input;
    std::uint64_t input_width;  // elements between two tokens of the input
    std::uintptr_t output;
    std::uint64_t columns;
    std::uint64_t depth;
  };

  explicit GemmWorkload(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}
  Status allocate();
  Status fill(std::size_t bytes) const;
  Status multiply(const Product& product, std::uint64_t tokens) const;
  Status attend(std::uint64_t tokens, std::uint64_t keys) const;

  std::shared_ptr<const CudaContext> context_;
  GemmShape shape_;
  const Cublas* cublas_ = nullptr;
  Cublas::Handle handle_ = nullptr;
  int version_ = 0;
  CudaStream stream_;
  std::uintptr_t memory_ = 0;
  // Parts of memory_.
  std::uintptr_t qkv_weights_ = 0;
  std::uintptr_t output_weights_ = 0;
  std::uintptr_t gate_up_weights_ = 0;
  std::uintptr_t down_weights_ = 0;
  std::uintptr_t keys_ = 0;
  std::uintptr_t values_ = 0;
  std::uintptr_t input_ = 0;
  std::uintptr_t qkv_ = 0;
  std::uintptr_t attended_ = 0;
  std::uintptr_t gate_up_ = 0;
  std::uintptr_t result_ = 0;
  std::uintptr_t scores_ = 0;
};

}  // namespace kvt
