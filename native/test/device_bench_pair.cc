#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "core/page_content.h"
#include "core/unique_fd.h"
#include "device/peer_mapping.h"
#include "device_bench_support.h"

namespace kvt::bench {
namespace {

constexpr std::size_t kPoolBytes = (std::size_t{512} << 20) + (std::size_t{32} << 20);

void send_handle(int socket, const PoolHandle& handle) {
  PoolHandle copy = handle;
  iovec data{&copy, sizeof copy};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (handle.sharing == PoolSharing::kDescriptor) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &handle.descriptor, sizeof(int));
  }
  if (::sendmsg(socket, &message, 0) < 0) require(Status(StatusCode::kInternal, std::strerror(errno)), "sendmsg");
}

PoolHandle receive_handle(int socket, UniqueFd* descriptor) {
  PoolHandle handle;
  iovec data{&handle, sizeof handle};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, 0) != sizeof handle) require(Status(StatusCode::kInternal, "cut"), "recvmsg");
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    descriptor->reset(fd);
  }
  return handle;
}

// The two ends meet here: one byte each way.
void signal_other(int socket) {
  if (::write(socket, "x", 1) != 1) std::exit(1);
}
void await_other(int socket) {
  char byte = 0;
  if (::read(socket, &byte, 1) != 1) std::exit(1);
}

// 64 pages of 32 KiB: heads 4 x tokens 32 x 256 B.
ContentJob content_of(std::uintptr_t base, const std::vector<std::int32_t>& slots, std::size_t pool_size) {
  ContentJob job;
  constexpr std::size_t kPage = 32 << 10;
  job.entries.push_back({.pool = {base, kPage, kPage, static_cast<std::int32_t>(pool_size / kPage)},
                         .offset = 0,
                         .layer = 3,
                         .role = 1,
                         .layout = ContentLayout::kHeadMajor,
                         .heads = 4,
                         .first_head = 0,
                         .token_bytes = 256});
  job.tokens_per_block = 32;
  job.slots = slots;
  std::vector<std::uint32_t> ids(slots.size() * 32);
  std::iota(ids.begin(), ids.end(), 17);
  job.seeds.resize(ids.size());
  chain_token_seeds(ids, job.seeds);
  return job;
}

// How long after an event of another stream the first byte of a slice moves: the slice is one page, and what the page
// itself takes is measured and taken off.
void measure_event(const Gpu& gpu, const PlacedSlice& page, std::uintptr_t scratch, Records* out) {
  CudaStream forward;
  CudaEvent done;
  CudaEvent copied;
  CudaEvent begun;
  require(CudaStream::create(gpu.context, StreamPriority::kHigh, &forward), "making a stream");
  for (CudaEvent* event : {&done, &copied, &begun}) {
    require(CudaEvent::create(gpu.context, EventTiming::kOn, event), "making an event");
  }
  std::vector<double> waits;
  const CurrentContext current(*gpu.context);
  for (int i = 0; i < 200; ++i) {
    // A forward of about a millisecond, long enough that everything below is queued before it ends.
    for (int k = 0; k < 10; ++k) (void)gpu.api().cuMemsetD8Async(scratch, 1, std::size_t{256} << 20, forward.handle());
    require(done.record(forward), "recording");
    require(done.wait_on(gpu.stream), "waiting");
    require(gpu.kernels->copy(CopyKind::kPaged, CopyMethod::kRegisters, page.arguments, 16, gpu.stream), "launching");
    require(copied.record(gpu.stream), "recording");
    require(gpu.stream.synchronize(), "measuring");
    float ms = 0;
    require(CudaEvent::elapsed_ms(done, copied, &ms), "measuring");
    waits.push_back(static_cast<double>(ms) * 1e3);
  }
  const double alone =
      time_work(gpu, [&] {
        require(gpu.kernels->copy(CopyKind::kPaged, CopyMethod::kRegisters, page.arguments, 16, gpu.stream),
                "launching");
      }).device_us;
  std::sort(waits.begin(), waits.end());
  Records::Line line;
  line.text("what", "forward's event to one page copied").number("p50_us", waits[100]).number("p99_us", waits[198]);
  line.number("page_alone_us", alone);
  out->add(line);
  std::printf("event to one page copied: p50 %.1f us, p99 %.1f us; the page alone %.1f us\n", waits[100], waits[198],
              alone);
}

void run_writer(int ordinal, int socket, Records* out) {
  const Gpu gpu(ordinal);
  UniqueFd descriptor;
  const PoolHandle handle = receive_handle(socket, &descriptor);
  const double from = now_ms();
  std::unique_ptr<PeerMapping> mapping;
  require(PeerMapping::open(gpu.context, handle, std::move(descriptor), &mapping), "mapping the receiver's pool");
  const double mapped_ms = now_ms() - from;
  std::unique_ptr<DevicePool> source;
  require(DevicePool::allocate(gpu.context, kPoolBytes, &source), "allocating");
  Records::Line line;
  line.text("what", "mapping a pool of 544 MiB").number("ms", mapped_ms);
  line.text("sharing", handle.sharing == PoolSharing::kDescriptor ? "descriptor" : "ipc");
  out->add(line);
  std::printf("mapped by %s in %.2f ms\n", handle.sharing == PoolSharing::kDescriptor ? "descriptor" : "ipc",
              mapped_ms);

  // Right bytes first: every method, checked by the receiver.
  const SliceShape shape = slice_shapes().front();
  PlacedSlice slice(gpu, shape, std::size_t{64} << 20, source->base(), source->size(), mapping->base(),
                    mapping->size());
  std::uint64_t bytes = 0;
  require(gpu.kernels->fill(content_of(source->base(), slice.from(), source->size()), gpu.stream, &bytes), "filling");
  for (const CopyMethod method : {CopyMethod::kRegisters, CopyMethod::kBulk}) {
    if (method == CopyMethod::kBulk && !gpu.kernels->has_bulk()) continue;
    await_other(socket);
    require(gpu.kernels->copy(CopyKind::kPaged, method, slice.next_launch(), 16, gpu.stream), "launching");
    require(gpu.stream.synchronize(), "copying");
    signal_other(socket);
    await_other(socket);  // checked: the pool may change again
  }
  measure_copies(gpu, source->base(), source->size(), mapping->base(), mapping->size(),
                 handle.sharing == PoolSharing::kDescriptor ? "p2p" : "p2p, ipc", out);
  const PlacedSlice page(gpu, shape, shape.piece, source->base(), source->size(), mapping->base(), mapping->size());
  measure_event(gpu, page, source->base() + (std::size_t{256} << 20), out);
  signal_other(socket);
  await_other(socket);
}

void run_receiver(int ordinal, int socket, bool is_registered) {
  const Gpu gpu(ordinal);
  DeviceBuffer engine_memory;
  std::unique_ptr<DevicePool> pool;
  if (is_registered) {
    constexpr std::size_t kOffset = 4096 + 256;
    require(DeviceBuffer::create(gpu.context, kPoolBytes + kOffset, &engine_memory), "allocating as an engine would");
    require(DevicePool::adopt(gpu.context, engine_memory.device() + kOffset, kPoolBytes, &pool), "registering");
  } else {
    require(DevicePool::allocate(gpu.context, kPoolBytes, &pool), "allocating the receiver's pool");
  }
  send_handle(socket, pool->handle());
  // The same slots as the writer's slice.
  std::vector<std::int32_t> slots(pool->size() / (32 << 10));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(2));
  slots.resize((std::size_t{64} << 20) / (32 << 10));
  for (int method = 0; method < (gpu.kernels->has_bulk() ? 2 : 1); ++method) {
    {
      const CurrentContext current(*gpu.context);
      (void)gpu.api().cuMemsetD8Async(pool->base(), 0xcc, pool->size(), gpu.stream.handle());
    }
    require(gpu.stream.synchronize(), "poisoning");
    signal_other(socket);
    await_other(socket);
    ContentCheck check;
    require(gpu.kernels->verify(content_of(pool->base(), slots, pool->size()), gpu.stream, &check), "verifying");
    std::fprintf(stderr, "%s: %llu bytes checked, %llu wrong\n", method == 0 ? "registers" : "bulk",
                 static_cast<unsigned long long>(check.bytes_checked),
                 static_cast<unsigned long long>(check.wrong_bytes));
    if (check.wrong_bytes != 0 || check.bytes_checked != std::size_t{64} << 20) std::exit(1);
    signal_other(socket);
  }
  await_other(socket);
  signal_other(socket);
}

// Copies two different contents over the same pages for ever, so that every launch changes what the receiver samples.
[[noreturn]] void run_endless_writer(int ordinal, int socket) {
  const Gpu gpu(ordinal);
  UniqueFd descriptor;
  const PoolHandle handle = receive_handle(socket, &descriptor);
  std::unique_ptr<PeerMapping> mapping;
  require(PeerMapping::open(gpu.context, handle, std::move(descriptor), &mapping), "mapping the receiver's pool");
  const SliceShape shape = slice_shapes().front();
  std::unique_ptr<DevicePool> sources[2];
  std::vector<PlacedSlice> slices;
  for (int i = 0; i < 2; ++i) {
    require(DevicePool::allocate(gpu.context, kPoolBytes, &sources[i]), "allocating");
    const CurrentContext current(*gpu.context);
    (void)gpu.api().cuMemsetD8Async(sources[i]->base(), i == 0 ? 0x11 : 0x22, kPoolBytes, gpu.stream.handle());
    require(gpu.stream.synchronize(), "filling");
    slices.emplace_back(gpu, shape, std::size_t{64} << 20, sources[i]->base(), sources[i]->size(), mapping->base(),
                        mapping->size());
  }
  for (bool is_told = false;;) {
    // Far ahead of the device: what is queued when the process dies is part of the question.
    for (int i = 0; i < 400; ++i) {
      require(gpu.kernels->copy(CopyKind::kPaged, CopyMethod::kRegisters,
                                slices[static_cast<std::size_t>(i % 2)].arguments, 16, gpu.stream),
              "launching");
      if (i == 20 && !is_told) {
        signal_other(socket);
        is_told = true;
      }
    }
    require(gpu.stream.synchronize(), "copying");
  }
}

struct KillTimes {
  double last_change_ms = 0;  // after the kill
  double pidfd_ms = 0;
  std::size_t late_bytes = 0;  // changed after the pidfd turned readable
};

// Only the first 4 MiB of the pool are sampled, so that a sample takes a fraction of a millisecond; a hundredth of the
// written pages lie there, and every launch writes them all.
KillTimes kill_once(const Gpu& gpu, const DevicePool& pool, pid_t writer, int pidfd) {
  constexpr std::size_t kSample = std::size_t{4} << 20;
  DeviceBuffer sample;  // its host side is pinned
  require(DeviceBuffer::create(gpu.context, kSample, &sample), "allocating");
  const CurrentContext current(*gpu.context);
  std::vector<std::byte> before(kSample);
  const auto take = [&](std::uintptr_t from, std::size_t bytes) {
    require(
        gpu.api().check(gpu.api().cuMemcpyDtoHAsync(sample.host().data(), from, bytes, gpu.stream.handle()), "read"),
        "sampling");
    require(gpu.stream.synchronize(), "sampling");
  };
  take(pool.base(), kSample);
  std::memcpy(before.data(), sample.host().data(), kSample);
  KillTimes times;
  const double killed = now_ms();
  (void)::kill(writer, SIGKILL);
  bool has_ended = false;
  double ended = 0;
  while (!has_ended) {
    pollfd wait{pidfd, POLLIN, 0};
    // The question comes before the sample, so that a change seen in it is not later than the answer claims.
    has_ended = ::poll(&wait, 1, 0) > 0;
    if (has_ended) ended = now_ms();
    take(pool.base(), kSample);
    const double seen = now_ms();
    if (std::memcmp(before.data(), sample.host().data(), kSample) == 0) continue;
    std::memcpy(before.data(), sample.host().data(), kSample);
    times.last_change_ms = seen - killed;
  }
  times.pidfd_ms = ended - killed;
  // From here on nothing may land: a canary over the whole pool must stay.
  (void)gpu.api().cuMemsetD8Async(pool.base(), 0x5a, pool.size(), gpu.stream.handle());
  require(gpu.stream.synchronize(), "writing the canary");
  const double until = now_ms() + 300;
  while (now_ms() < until) {
    take(pool.base(), kSample);
  }
  std::vector<std::byte> all(pool.size());
  require(
      gpu.api().check(gpu.api().cuMemcpyDtoHAsync(all.data(), pool.base(), all.size(), gpu.stream.handle()), "read"),
      "reading the canary");
  require(gpu.stream.synchronize(), "reading the canary");
  for (const std::byte b : all) times.late_bytes += b != std::byte{0x5a};
  return times;
}

}  // namespace

void measure_pair(int writer, int receiver, bool is_registered, Records* out) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) std::exit(1);
  // Before CUDA is touched: the driver does not survive a fork.
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(sockets[0]);
    run_receiver(receiver, sockets[1], is_registered);
    std::exit(0);
  }
  ::close(sockets[1]);
  run_writer(writer, sockets[0], out);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  if (status != 0) require(Status(StatusCode::kInternal, "the receiver failed"), "measuring a pair");
}

void measure_kills(int writer, int receiver, int times, Records* out) {
  // The writers are forked by a process that never touches CUDA.
  for (int i = 0; i < times; ++i) {
    int sockets[2];
    int report[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0 || ::pipe(report) != 0) std::exit(1);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(sockets[0]);
      run_endless_writer(writer, sockets[1]);
    }
    const pid_t watcher = ::fork();
    if (watcher == 0) {
      ::close(sockets[1]);
      const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
      const Gpu gpu(receiver);
      std::unique_ptr<DevicePool> pool;
      require(DevicePool::allocate(gpu.context, kPoolBytes, &pool), "allocating the receiver's pool");
      send_handle(sockets[0], pool->handle());
      await_other(sockets[0]);
      const KillTimes result = kill_once(gpu, *pool, child, pidfd.get());
      (void)!::write(report[1], &result, sizeof result);
      std::exit(0);
    }
    ::close(sockets[0]);
    ::close(sockets[1]);
    ::close(report[1]);
    KillTimes result;
    // The pidfd turns readable when the writer has ended, whether or not it was reaped.
    const bool is_whole = ::read(report[0], &result, sizeof result) == sizeof result;
    ::close(report[0]);
    (void)::waitpid(child, nullptr, 0);
    (void)::waitpid(watcher, nullptr, 0);
    if (!is_whole) require(Status(StatusCode::kInternal, "the watcher failed"), "killing a writer");
    Records::Line line;
    line.text("what", "writer killed").number("writer_gpu", writer).number("receiver_gpu", receiver);
    line.number("last_change_ms", result.last_change_ms).number("pidfd_ms", result.pidfd_ms);
    line.number("late_bytes", static_cast<double>(result.late_bytes));
    out->add(line);
    std::printf("kill %2d: last change %.1f ms, pidfd %.1f ms after the kill, %zu bytes after that\n", i,
                result.last_change_ms, result.pidfd_ms, result.late_bytes);
    std::fflush(stdout);
  }
}

}  // namespace kvt::bench
