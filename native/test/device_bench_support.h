#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "device/copy_plan.h"
#include "device/cuda_context.h"
#include "device/cuda_event.h"
#include "device/cuda_stream.h"
#include "device/device_buffer.h"
#include "device/device_pool.h"
#include "device/page_kernels.h"

namespace kvt::bench {

// A measurement cannot go on after an error: it says what failed and ends the process.
inline void require(const Status& status, const char* what) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "device_bench: %s: %s\n", what, status.message().c_str());
  std::exit(1);
}

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Lines of one JSON array; each line is an object of names and numbers or texts.
class Records {
 public:
  class Line {
   public:
    Line& text(const char* name, const std::string& value) { return put(name, '"' + value + '"'); }
    Line& number(const char* name, double value) {
      char out[64];
      std::snprintf(out, sizeof out, "%.6g", value);
      return put(name, out);
    }
    const std::string& body() const { return body_; }

   private:
    Line& put(const char* name, const std::string& value) {
      body_ += (body_.empty() ? "" : ", ") + ('"' + std::string(name)) + "\": " + value;
      return *this;
    }
    std::string body_;
  };

  void add(const Line& line) { lines_.push_back(line.body()); }
  void write(std::FILE* file) const {
    std::fprintf(file, "[\n");
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      std::fprintf(file, "  {%s}%s\n", lines_[i].c_str(), i + 1 < lines_.size() ? "," : "");
    }
    std::fprintf(file, "]\n");
  }

 private:
  std::vector<std::string> lines_;
};

// One device with what a measurement needs on it.
struct Gpu {
  std::shared_ptr<const CudaContext> context;
  CudaStream stream;
  std::unique_ptr<PageKernels> kernels;

  explicit Gpu(int ordinal) {
    require(CudaContext::retain(ordinal, &context), "opening the device");
    require(CudaStream::create(context, StreamPriority::kLow, &stream), "making a stream");
    require(PageKernels::load(context, &kernels), "loading the kernels");
  }
  const CudaApi& api() const { return context->api(); }
};

// A slice of `pages` pages scattered over two pools.
struct SliceShape {
  std::string name;
  std::size_t source_slot = 0;
  std::size_t destination_slot = 0;
  std::size_t source_offset = 0;
  std::size_t destination_offset = 0;
  std::size_t piece = 0;
  std::size_t count = 1;
  std::size_t source_stride = 0;
  std::size_t destination_stride = 0;

  std::size_t bytes() const { return piece * count; }
};

inline std::vector<SliceShape> slice_shapes() {
  constexpr std::size_t kKib = 1024;
  return {{.name = "32KiB", .source_slot = 32 * kKib, .destination_slot = 32 * kKib, .piece = 32 * kKib},
          {.name = "4KiB", .source_slot = 4 * kKib, .destination_slot = 4 * kKib, .piece = 4 * kKib},
          {.name = "4KiB of 8KiB (TP split)",
           .source_slot = 8 * kKib,
           .destination_slot = 4 * kKib,
           .source_offset = 4 * kKib,
           .piece = 4 * kKib},
          {.name = "16 x 256 B (NHD head split)",
           .source_slot = 16 * kKib,
           .destination_slot = 8 * kKib,
           .source_offset = 256,
           .piece = 256,
           .count = 16,
           .source_stride = kKib,
           .destination_stride = 512},
          {.name = "64 x 64 B",
           .source_slot = 8 * kKib,
           .destination_slot = 8 * kKib,
           .piece = 64,
           .count = 64,
           .source_stride = 128,
           .destination_stride = 128},
          {.name = "32KiB at odd offsets",
           .source_slot = 33 * kKib,
           .destination_slot = 33 * kKib,
           .source_offset = 3,
           .destination_offset = 7,
           .piece = 32 * kKib}};
}

// Tables and slots of one slice on the device.
class PlacedSlice {
 public:
  PlacedSlice(const Gpu& gpu, const SliceShape& shape, std::size_t total, std::uintptr_t source,
              std::size_t source_size, std::uintptr_t destination, std::size_t destination_size)
      : pages_(total / shape.bytes()) {
    const auto pool = [](std::uintptr_t base, std::size_t slot, std::size_t size) {
      return SlotPool{base, slot, slot, static_cast<std::int32_t>(size / slot)};
    };
    const Fragment fragment{.source = pool(source, shape.source_slot, source_size),
                            .destination = pool(destination, shape.destination_slot, destination_size),
                            .source_offset = shape.source_offset,
                            .destination_offset = shape.destination_offset,
                            .bytes = shape.piece,
                            .count = shape.count,
                            .source_stride = shape.source_stride,
                            .destination_stride = shape.destination_stride};
    FragmentTable table;
    require(FragmentTable::create({fragment}, &table), "making a fragment table");
    require(make_copy_table(table, &table_), "making a copy table");
    from_ = scattered(fragment.source.slot_count, 1);
    to_ = scattered(fragment.destination.slot_count, 2);
    const std::size_t slots_at = 256;
    require(DeviceBuffer::create(gpu.context, slots_at + pages_ * 8, &buffer_), "making a buffer");
    std::memcpy(buffer_.host().data(), table_.fragments.data(), sizeof(DeviceFragment));
    auto* slots = reinterpret_cast<std::int32_t*>(buffer_.host().data() + slots_at);
    for (std::size_t i = 0; i < pages_; ++i) {
      slots[2 * i] = from_[i];
      slots[2 * i + 1] = to_[i];
    }
    require(buffer_.upload(buffer_.size(), gpu.stream), "uploading slots");
    require(DeviceBuffer::create(gpu.context, kLaunches * sizeof(LaunchState), &states_), "making states");
    std::memset(states_.host().data(), 0, states_.size());
    require(states_.upload(states_.size(), gpu.stream), "uploading states");
    require(gpu.stream.synchronize(), "uploading slots");
    const CopyPart part{.table = &table_,
                        .fragments_at = buffer_.device(),
                        .source_slots_at = buffer_.device() + slots_at,
                        .destination_slots_at = buffer_.device() + slots_at + 4,
                        .pair_count = static_cast<std::uint32_t>(pages_)};
    require(make_copy_arguments(std::vector<CopyPart>{part}, &arguments), "making arguments");
  }

  // With a state of its own, as a slice brings one: tiles are handed out. `arguments` settles them beforehand.
  CopyArguments next_launch() {
    if (launches_ == kLaunches) require(Status(StatusCode::kInternal, "no state is left"), "launching");
    CopyArguments next = arguments;
    next.state = states_.device() + launches_++ * sizeof(LaunchState);
    return next;
  }

  bool is_bulk() const { return table_.traits.alignment == 16; }
  std::size_t pages() const { return pages_; }
  const std::vector<std::int32_t>& from() const { return from_; }
  const std::vector<std::int32_t>& to() const { return to_; }
  std::uint64_t bytes() const { return arguments.range_end; }

  CopyArguments arguments{};

 private:
  std::vector<std::int32_t> scattered(std::int32_t slots, std::uint32_t seed) const {
    std::vector<std::int32_t> out(static_cast<std::size_t>(slots));
    std::iota(out.begin(), out.end(), 0);
    std::shuffle(out.begin(), out.end(), std::mt19937(seed));
    if (out.size() < pages_) require(Status(StatusCode::kInternal, "the pool is too small"), "placing a slice");
    out.resize(pages_);
    return out;
  }

  static constexpr std::size_t kLaunches = 2048;

  std::size_t pages_;
  CopyTable table_;
  DeviceBuffer buffer_;
  DeviceBuffer states_;
  std::size_t launches_ = 0;
  std::vector<std::int32_t> from_, to_;
};

struct Timing {
  double device_us = 0;  // between two events around the work
  double launch_us = 0;  // of the calling thread
};

// Median of some runs after some that warm up.
inline Timing time_work(const Gpu& gpu, const std::function<void()>& work, int runs = 11) {
  CudaEvent before;
  CudaEvent after;
  require(CudaEvent::create(gpu.context, EventTiming::kOn, &before), "making an event");
  require(CudaEvent::create(gpu.context, EventTiming::kOn, &after), "making an event");
  std::vector<double> device;
  std::vector<double> launch;
  for (int i = 0; i < runs + 3; ++i) {
    require(before.record(gpu.stream), "recording");
    const double from = now_ms();
    work();
    const double to = now_ms();
    require(after.record(gpu.stream), "recording");
    require(gpu.stream.synchronize(), "measuring");
    float ms = 0;
    require(CudaEvent::elapsed_ms(before, after, &ms), "measuring");
    if (i < 3) continue;
    device.push_back(static_cast<double>(ms) * 1e3);
    launch.push_back((to - from) * 1e3);
  }
  return {median(device), median(launch)};
}

inline double gigabytes_per_second(std::uint64_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

void measure_copies(const Gpu& gpu, std::uintptr_t source, std::size_t source_size, std::uintptr_t destination,
                    std::size_t destination_size, const std::string& path, Records* out);
void measure_single(Records* out);
// is_registered: the pool is memory that an engine allocated, shared by IPC handle.
void measure_pair(int writer, int receiver, bool is_registered, Records* out);
void measure_kills(int writer, int receiver, int times, Records* out);

}  // namespace kvt::bench
