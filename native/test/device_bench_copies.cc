#include "device_bench_support.h"

namespace kvt::bench {
namespace {

constexpr std::size_t kTotal = std::size_t{256} << 20;

void put(Records* out, const std::string& path, const std::string& what, const std::string& shape, unsigned blocks,
         std::uint64_t bytes, const Timing& timing, double roof) {
  const double rate = gigabytes_per_second(bytes, timing.device_us);
  Records::Line line;
  line.text("path", path).text("what", what).text("shape", shape);
  line.number("blocks", blocks).number("bytes", static_cast<double>(bytes)).number("device_us", timing.device_us);
  line.number("launch_us", timing.launch_us).number("GBps", rate).number("share_of_contiguous", rate / roof);
  out->add(line);
  std::printf("%-10s %-16s %-28s blocks %3u  %8.1f us  %7.1f GB/s  %5.1f %%  launch %5.1f us\n", path.c_str(),
              what.c_str(), shape.c_str(), blocks, timing.device_us, rate, 100 * rate / roof, timing.launch_us);
  std::fflush(stdout);
}

}  // namespace

void measure_copies(const Gpu& gpu, std::uintptr_t source, std::size_t source_size, std::uintptr_t destination,
                    std::size_t destination_size, const std::string& path, Records* out) {
  const CurrentContext current(*gpu.context);
  const Timing contiguous = time_work(gpu, [&] {
    require(gpu.api().check(gpu.api().cuMemcpyDtoDAsync(destination, source, kTotal, gpu.stream.handle()), "copying"),
            "one contiguous copy");
  });
  const double roof = gigabytes_per_second(kTotal, contiguous.device_us);
  put(out, path, "one copy", "256MiB", 0, kTotal, contiguous, roof);
  const auto measure = [&](const std::string& what, CopyMethod method, PlacedSlice* slice, const SliceShape& shape,
                           unsigned blocks, unsigned turn, bool is_handed_out) {
    put(out, path, what, shape.name, blocks, slice->bytes(),
        time_work(gpu,
                  [&] {
                    CopyArguments arguments = is_handed_out ? slice->next_launch() : slice->arguments;
                    arguments.turn = turn;
                    require(gpu.kernels->copy(CopyKind::kPaged, method, arguments, blocks, gpu.stream), "launching");
                  }),
        roof);
  };
  const auto name = [](CopyMethod method) { return std::string(method == CopyMethod::kBulk ? "bulk" : "registers"); };
  for (const SliceShape& shape : slice_shapes()) {
    // Split pages take more room than they move.
    const std::size_t pages =
        std::min({kTotal / shape.bytes(), source_size / shape.source_slot, destination_size / shape.destination_slot});
    PlacedSlice slice(gpu, shape, pages * shape.bytes(), source, source_size, destination, destination_size);
    std::vector<CopyMethod> methods{CopyMethod::kRegisters};
    if (slice.is_bulk() && gpu.kernels->has_bulk()) methods.push_back(CopyMethod::kBulk);
    const bool is_first = shape.name == "32KiB";
    for (const unsigned blocks : {4U, 8U, 16U, 24U, 32U, 132U}) {
      if (!is_first && (blocks == 4 || blocks == 24)) continue;
      for (const CopyMethod method : methods) measure(name(method), method, &slice, shape, blocks, 0, true);
    }
    if (!is_first) continue;
    for (const CopyMethod method : methods) {
      for (const unsigned blocks : {8U, 16U, 32U}) {
        measure(name(method) + ", settled", method, &slice, shape, blocks, 0, false);
        for (const unsigned turn : {1U, 2U, 4U}) {
          measure(name(method) + ", turn " + std::to_string(turn), method, &slice, shape, blocks, turn, true);
        }
      }
    }
    for (const std::size_t mib : {std::size_t{8}, std::size_t{64}}) {
      const SliceShape cut{.name = "32KiB, " + std::to_string(mib) + "MiB in all",
                           .source_slot = shape.source_slot,
                           .destination_slot = shape.destination_slot,
                           .piece = shape.piece};
      PlacedSlice part(gpu, cut, mib << 20, source, source_size, destination, destination_size);
      for (const CopyMethod method : methods) {
        for (const unsigned blocks : {8U, 16U, 32U}) measure(name(method), method, &part, cut, blocks, 0, true);
      }
    }
    const PlacedSlice small(gpu, shape, std::size_t{64} << 20, source, source_size, destination, destination_size);
    put(out, path, "copy per page", shape.name, 0, small.bytes(),
        time_work(
            gpu,
            [&] {
              for (std::size_t i = 0; i < small.pages(); ++i) {
                (void)gpu.api().cuMemcpyDtoDAsync(destination + static_cast<std::size_t>(small.to()[i]) * shape.piece,
                                                  source + static_cast<std::size_t>(small.from()[i]) * shape.piece,
                                                  shape.piece, gpu.stream.handle());
              }
            },
            5),
        roof);
  }
}

void measure_single(Records* out) {
  const Gpu gpu(0);
  std::unique_ptr<DevicePool> source;
  std::unique_ptr<DevicePool> destination;
  require(DevicePool::allocate(gpu.context, 2 * kTotal + (std::size_t{32} << 20), &source), "allocating");
  require(DevicePool::allocate(gpu.context, 2 * kTotal + (std::size_t{32} << 20), &destination), "allocating");
  std::printf("%s, %d multiprocessors, driver %d, pools: %s\n", gpu.context->name().c_str(),
              gpu.context->multiprocessor_count(), gpu.api().driver_version,
              source->notice().empty() ? "exported by descriptor" : source->notice().c_str());
  measure_copies(gpu, source->base(), source->size(), destination->base(), destination->size(), "local", out);

  const SliceShape shape = slice_shapes().front();
  PlacedSlice slice(gpu, shape, kTotal, source->base(), source->size(), destination->base(), destination->size());
  std::unique_ptr<DevicePool> arena;
  require(DevicePool::allocate(gpu.context, kTotal, &arena), "allocating");
  slice.arguments.linear = arena->base();
  for (const unsigned blocks : {16U, 32U, 132U}) {
    for (const CopyKind kind : {CopyKind::kGather, CopyKind::kScatter}) {
      const Timing timing = time_work(gpu, [&] {
        require(gpu.kernels->copy(kind, CopyMethod::kRegisters, slice.arguments, blocks, gpu.stream), "launching");
      });
      Records::Line line;
      line.text("path", "local").text("what", kind == CopyKind::kGather ? "gather" : "scatter");
      line.text("shape", shape.name).number("blocks", blocks).number("device_us", timing.device_us);
      line.number("GBps", gigabytes_per_second(slice.bytes(), timing.device_us));
      out->add(line);
      std::printf("%s blocks %u: %.1f GB/s\n", kind == CopyKind::kGather ? "gather" : "scatter", blocks,
                  gigabytes_per_second(slice.bytes(), timing.device_us));
    }
  }
  DeviceBuffer sum;
  require(DeviceBuffer::create(gpu.context, 64, &sum), "allocating");
  slice.arguments.checksum = sum.device();
  for (const unsigned blocks : {16U, 32U}) {
    const Timing timing = time_work(gpu, [&] {
      require(gpu.kernels->copy(CopyKind::kPagedSummed, CopyMethod::kRegisters, slice.arguments, blocks, gpu.stream),
              "launching");
    });
    Records::Line line;
    line.text("path", "local").text("what", "registers, summed").text("shape", shape.name).number("blocks", blocks);
    line.number("device_us", timing.device_us).number("GBps", gigabytes_per_second(slice.bytes(), timing.device_us));
    out->add(line);
    std::printf("summed blocks %u: %.1f GB/s\n", blocks, gigabytes_per_second(slice.bytes(), timing.device_us));
  }
}

}  // namespace kvt::bench
