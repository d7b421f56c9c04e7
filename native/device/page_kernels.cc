#include "device/page_kernels.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device/kernel_image.h"

namespace kvt {

namespace {

// Code for the bulk engine is embedded for these; what newer GPUs make of the embedded PTX has none.
constexpr bool has_bulk_code(int architecture) { return architecture / 10 == 9 || architecture / 10 == 10; }
constexpr unsigned kWarpThreads = 32;
// Four tiles in a row are half a 32 KiB page. Over NVLink 8 blocks then move 290 GB/s instead of 229 through registers,
// and 334 instead of 315 by the bulk engine into memory that lies oddly (an engine's own, 256-byte aligned); with more
// blocks it makes no difference. Small slices keep single tiles, so that every worker has some.
constexpr unsigned kTurn = 4;

unsigned turn_of(const CopyArguments& arguments, unsigned workers) {
  if (arguments.turn != 0) return arguments.turn;
  const unsigned tiles = arguments.tile_end - arguments.tile_begin;
  return tiles / kTurn >= 2 * workers ? kTurn : 1;
}

// Whether the image is not one for this GPU or driver. Anything else, such as a GPU without memory, may pass.
bool is_unfit(cuda::Result result) {
  switch (result) {
    case cuda::kErrorInvalidImage:
    case cuda::kErrorNoBinaryForGpu:
    case cuda::kErrorInvalidPtx:
    case cuda::kErrorJitCompilerNotFound:
    case cuda::kErrorUnsupportedPtxVersion:
    case cuda::kErrorJitDisabled:
    case cuda::kErrorNotSupported:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status PageKernels::load(std::shared_ptr<const CudaContext> context, std::unique_ptr<PageKernels>* out) {
  if (kernel_image().empty()) {
    return Status(StatusCode::kCapability,
                  "this build has no GPU kernels: it was made without nvcc; install a prebuilt package, or put nvcc on "
                  "the PATH (or run scripts/fetch-nvcc.mjs) and run `npm run build:addon` in the package folder");
  }
  std::unique_ptr<PageKernels> made(new PageKernels(std::move(context)));
  const CurrentContext current(*made->context_);
  if (!current.status().is_ok()) return current.status();
  Status status = made->load_image();
  if (!status.is_ok()) return status;
  const std::pair<const char*, cuda::Function*> wanted[] = {
      {"kvt_copy", &made->copy_},     {"kvt_copy_summed", &made->copy_summed_},
      {"kvt_gather", &made->gather_}, {"kvt_scatter", &made->scatter_},
      {"kvt_fill", &made->fill_},     {"kvt_verify", &made->verify_}};
  for (const auto& [name, function] : wanted) {
    status = made->find(name, function);
    if (!status.is_ok()) return status;
  }
  if (has_bulk_code(made->context_->architecture())) {
    status = made->find("kvt_copy_bulk", &made->copy_bulk_);
    if (!status.is_ok()) return status;
    const CudaApi& api = made->context_->api();
    status = api.check(api.cuFuncSetAttribute(made->copy_bulk_, cuda::kFunctionMaxDynamicSharedSize,
                                              static_cast<int>(kBulkSharedBytes)),
                       "cuFuncSetAttribute");
    if (!status.is_ok()) return status;
  }
  *out = std::move(made);
  return Status::ok();
}

Status PageKernels::load_image() {
  const CudaApi& api = context_->api();
  const void* image = kernel_image().data();
  const bool has_libraries = api.cuLibraryLoadData != nullptr && api.cuLibraryGetKernel != nullptr &&
                             api.cuKernelGetFunction != nullptr && api.cuLibraryUnload != nullptr;
  const cuda::Result result = has_libraries
                                  ? api.cuLibraryLoadData(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0)
                                  : api.cuModuleLoadData(&module_, image);
  const Status status = api.check(result, has_libraries ? "cuLibraryLoadData" : "cuModuleLoadData");
  if (status.is_ok()) return status;
  if (!is_unfit(result)) {
    return Status(status.code(), "the GPU kernels cannot be loaded on " + context_->name() + ": " + status.message());
  }
  return Status(StatusCode::kCapability,
                "the embedded GPU kernels do not load on " + context_->name() + ": " + status.message() +
                    "; they are made for compute capability 8.0 and newer and the driver of the CUDA release they were "
                    "built with (13.x: 580 or newer); this driver speaks CUDA " +
                    std::to_string(api.driver_version / 1000) + "." + std::to_string(api.driver_version % 1000 / 10));
}

Status PageKernels::find(const char* name, cuda::Function* out) const {
  const CudaApi& api = context_->api();
  if (library_ == nullptr) return api.check(api.cuModuleGetFunction(out, module_, name), name);
  cuda::Kernel kernel = nullptr;
  Status status = api.check(api.cuLibraryGetKernel(&kernel, library_, name), name);
  if (!status.is_ok()) return status;
  return api.check(api.cuKernelGetFunction(out, kernel), name);
}

PageKernels::~PageKernels() {
  const CudaApi& api = context_->api();
  const CurrentContext current(*context_);
  if (library_ != nullptr) (void)api.cuLibraryUnload(library_);
  if (module_ != nullptr) (void)api.cuModuleUnload(module_);
}

Status PageKernels::launch(cuda::Function function, unsigned blocks, unsigned threads, unsigned shared_bytes,
                           const CudaStream& stream, const void* arguments) const {
  const CudaApi& api = context_->api();
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) return current.status();
  // The driver copies the arguments before it returns and does not write to them.
  void* parameters[] = {const_cast<void*>(arguments)};
  return api.check(
      api.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream.handle(), parameters, nullptr),
      "cuLaunchKernel");
}

Status PageKernels::copy(CopyKind kind, CopyMethod method, const CopyArguments& arguments, unsigned blocks,
                         const CudaStream& stream) const {
  if (blocks == 0) return Status(StatusCode::kInvalidArgument, "a copy needs at least one block");
  const unsigned tiles = arguments.tile_end - arguments.tile_begin;
  if (tiles == 0 || arguments.group_count == 0) return Status::ok();
  if (method == CopyMethod::kBulk) {
    if (copy_bulk_ == nullptr || kind != CopyKind::kPaged) {
      return Status(StatusCode::kCapability,
                    "the bulk copy needs compute capability 9.x or 10.x and copies pages to pages");
    }
    const unsigned grid = std::min(blocks, tiles);
    CopyArguments sized = arguments;
    sized.turn = turn_of(arguments, grid * kBulkWarps);
    return launch(copy_bulk_, grid, kBulkWarps * kWarpThreads, kBulkSharedBytes, stream, &sized);
  }
  cuda::Function function = copy_;
  if (kind == CopyKind::kPagedSummed) function = copy_summed_;
  if (kind == CopyKind::kGather) function = gather_;
  if (kind == CopyKind::kScatter) function = scatter_;
  // Tiles go to blocks in turn before they go to a second warp, so a small slice still spreads over the grid.
  CopyArguments sized = arguments;
  sized.turn = turn_of(arguments, std::min(blocks, tiles) * (kCopyThreads / kWarpThreads));
  return launch(function, std::min(blocks, tiles), kCopyThreads, 0, stream, &sized);
}

}  // namespace kvt
