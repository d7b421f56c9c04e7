#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/copy_choice.h"
#include "core/page_content.h"
#include "core/status.h"
#include "device/copy_plan.h"
#include "device/cuda_context.h"
#include "device/cuda_stream.h"
#include "device/device_buffer.h"

namespace kvt {

enum class CopyKind : std::uint8_t {
  kPaged,        // pages to pages
  kPagedSummed,  // the same, adding the content's sum to CopyArguments::checksum
  kGather,       // pages to a linear range
  kScatter,      // a linear range to pages
};

// Bounds how many multiprocessors a transfer takes from prefill.
inline constexpr unsigned kDefaultCopyBlocks = 16;

// Role: the embedded kernels of one device, ready to launch.
// Ownership: owns the loaded image and keeps the context.
// Threading: launches from any thread; each launch is queued on its stream and returns.
class PageKernels {
 public:
  // kCapability when this build embeds no kernels, or none that the device or driver takes.
  static Status load(std::shared_ptr<const CudaContext> context, std::unique_ptr<PageKernels>* out);
  ~PageKernels();
  PageKernels(const PageKernels&) = delete;
  PageKernels& operator=(const PageKernels&) = delete;

  const std::shared_ptr<const CudaContext>& context() const { return context_; }
  bool has_bulk() const { return copy_bulk_ != nullptr; }

  // Every address in `arguments` is mapped on this device and stays so until the stream has run the launch.
  // `blocks` is an upper bound: small slices take fewer.
  Status copy(CopyKind kind, CopyMethod method, const CopyArguments& arguments, unsigned blocks,
              const CudaStream& stream) const;

  // Same content as fill_content and verify_content of core/page_content, over device pools and a checked job. They
  // upload the job and wait for the device: for tests, benches and the engine that fills pages, not for the progress
  // thread.
  Status fill(const ContentJob& job, const CudaStream& stream, std::uint64_t* bytes) const;
  Status verify(const ContentJob& job, const CudaStream& stream, ContentCheck* out) const;
  // Queues the fill and returns. `buffer` has upload_bytes(job) at least and must stay until the stream has run it.
  Status enqueue_fill(const ContentJob& job, const CudaStream& stream, const DeviceBuffer& buffer,
                      std::uint64_t* bytes) const;
  static std::size_t upload_bytes(const ContentJob& job);

 private:
  explicit PageKernels(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}
  Status load_image();
  Status find(const char* name, cuda::Function* out) const;
  Status launch(cuda::Function function, unsigned blocks, unsigned threads, unsigned shared_bytes,
                const CudaStream& stream, const void* arguments) const;

  std::shared_ptr<const CudaContext> context_;
  cuda::Library library_ = nullptr;
  cuda::Module module_ = nullptr;
  cuda::Function copy_ = nullptr;
  cuda::Function copy_summed_ = nullptr;
  cuda::Function copy_bulk_ = nullptr;
  cuda::Function gather_ = nullptr;
  cuda::Function scatter_ = nullptr;
  cuda::Function fill_ = nullptr;
  cuda::Function verify_ = nullptr;
};

}  // namespace kvt
