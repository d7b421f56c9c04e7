// The bounce path between two processes of which one is killed or stopped.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>

#include "bounce_agent.h"

namespace kvt {
namespace {

using namespace bounce_test;
using namespace std::chrono_literals;

// A whole message over a pipe.
void put(int fd, const std::vector<std::byte>& bytes) {
  const std::uint64_t size = bytes.size();
  ASSERT_EQ(::write(fd, &size, sizeof size), static_cast<ssize_t>(sizeof size));
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}
std::vector<std::byte> get(int fd) {
  std::uint64_t size = 0;
  if (::read(fd, &size, sizeof size) != static_cast<ssize_t>(sizeof size)) return {};
  std::vector<std::byte> bytes(size);
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = ::read(fd, bytes.data() + at, bytes.size() - at);
    if (got <= 0) return {};
    at += static_cast<std::size_t>(got);
  }
  return bytes;
}
std::vector<std::byte> bytes_of(std::uint64_t value) {
  std::vector<std::byte> out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
std::uint64_t number_in(const std::vector<std::byte>& bytes) {
  std::uint64_t value = 0;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Another process with one agent, which adds ours and then writes or receives for as long as it lives.
class OtherProcess {
 public:
  OtherProcess(bool writes, const TransportFactory& factory) {
    EXPECT_EQ(::pipe(to_child_), 0);
    EXPECT_EQ(::pipe(to_parent_), 0);
    pid = ::fork();
    if (pid != 0) return;
    run(writes, factory);
    ::_exit(0);
  }
  ~OtherProcess() {
    kill();
    for (const int fd : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) ::close(fd);
  }
  void meet(Agent* agent, PeerId peer) {
    put(to_child_[1], agent->metadata());
    put(to_child_[1], bytes_of(agent->pool.base));
    const std::vector<std::byte> metadata = get(to_parent_[0]);
    pool = number_in(get(to_parent_[0]));
    agent->add(peer, metadata);
    // It has added us as well and expects ticket 1.
    (void)get(to_parent_[0]);
  }
  void go() { put(to_child_[1], bytes_of(1)); }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }

  pid_t pid = 0;
  std::uintptr_t pool = 0;

 private:
  void run(bool writes, const TransportFactory& factory) {
    Agent agent(factory);
    fill(&agent, 99);
    const std::vector<std::byte> theirs = get(to_child_[0]);
    const std::uintptr_t their_pool = number_in(get(to_child_[0]));
    put(to_parent_[1], agent.metadata());
    put(to_parent_[1], bytes_of(agent.pool.base));
    agent.add(1, theirs);
    std::mt19937 random(1);
    const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
    const auto in = heads_table(their_pool, agent.pool.base);
    (void)agent.expect(1, 1, {inbound_of(0, in, pairs)}).is_ok();
    put(to_parent_[1], bytes_of(1));
    (void)get(to_child_[0]);
    const auto out = heads_table(agent.pool.base, their_pool);
    for (SubmissionId id = 1; writes; ++id) {
      agent.submit(slice_of(id, 1, 1, out, pairs, 0));
      (void)agent.wait(id);
    }
    while (true) ::pause();
  }

  int to_child_[2] = {-1, -1};
  int to_parent_[2] = {-1, -1};
};

TransportFactory watched(const std::shared_ptr<BounceGauges>& gauges) {
  BounceOptions options = small_arena();
  options.gauges = gauges;
  return host_factory(options);
}

// A writer that is stopped while it holds regions, and whose peer does not wait for it.
TEST(BounceProcesses, AStoppedWriterKeepsItsRegionsUntilItGoesOnOrEnds) {
  for (const bool goes_on : {true, false}) {
    const auto gauges = std::make_shared<BounceGauges>();
    const auto at = [&gauges](BounceGauge gauge) { return gauges->at(static_cast<std::size_t>(gauge)); };
    const auto await = [](const auto& is_so) {
      const auto until = std::chrono::steady_clock::now() + 10s;
      bool so = is_so();
      for (; !so && std::chrono::steady_clock::now() < until; so = is_so()) std::this_thread::yield();
      return so;
    };
    OtherProcess other(true, host_factory(small_arena()));
    Agent reader(watched(gauges));
    other.meet(&reader, 1);
    std::vector<std::int32_t> all(kSlots);
    std::iota(all.begin(), all.end(), 0);
    ASSERT_TRUE(reader.expect(1, 1, {{0, heads_table(other.pool, reader.pool.base), all}}).is_ok());
    other.go();
    // Stopped between two slices it holds none.
    ASSERT_TRUE(await([&] {
      if (at(BounceGauge::kBytesScattered) == 0) return false;
      ::kill(other.pid, SIGSTOP);
      ::waitpid(other.pid, nullptr, WUNTRACED);
      std::this_thread::sleep_for(20ms);  // what it had said is answered
      if (at(BounceGauge::kChunksGranted) > 0) return true;
      ::kill(other.pid, SIGCONT);
      return false;
    }));
    reader.end(1, 1);
    reader.remove(1);
    ASSERT_TRUE(await([&] { return at(BounceGauge::kLostBytes) > 0; }));
    EXPECT_EQ(at(BounceGauge::kLostBytes), at(BounceGauge::kArenaUsedBytes));
    if (goes_on) {
      ::kill(other.pid, SIGCONT);
    } else {
      other.kill();
    }
    // Gauges are told one after the other.
    EXPECT_TRUE(await([&] { return at(BounceGauge::kArenaUsedBytes) == 0 && at(BounceGauge::kLostBytes) == 0; }));
  }
}

TEST(BounceProcesses, AKilledReceiverEndsEverySliceToIt) {
  OtherProcess other(false, host_factory(small_arena()));
  Agent writer(host_factory(small_arena()));
  other.meet(&writer, 1);
  other.go();
  fill(&writer, 1);
  std::mt19937 random(2);
  const auto table = heads_table(writer.pool.base, other.pool);
  for (SubmissionId id = 1; id <= 40; ++id) {
    writer.submit(slice_of(id, 1, 1, table, shuffled_pairs(&random, kSlots), 0));
  }
  ASSERT_EQ(writer.wait(1).outcome, Outcome::kTransferred) << writer.wait(1).error.message();
  other.kill();
  std::size_t lost = 0;
  for (SubmissionId id = 1; id <= 40; ++id) {
    const Notice notice = writer.wait(id, 5s);
    ASSERT_TRUE(notice.drained);
    if (notice.outcome == Outcome::kFailed) ++lost;
  }
  EXPECT_GT(lost, 0U);
  EXPECT_TRUE(writer.close().drained);
}

TEST(BounceProcesses, AKilledWriterLeavesPagesFreeAndTheArenaWhole) {
  OtherProcess killed(true, host_factory(small_arena()));
  OtherProcess next(true, host_factory(small_arena()));
  Agent reader(host_factory(small_arena()));
  killed.meet(&reader, 1);
  next.meet(&reader, 2);
  std::vector<std::int32_t> all(kSlots);
  std::iota(all.begin(), all.end(), 0);
  ASSERT_TRUE(reader.expect(1, 1, {{0, heads_table(killed.pool, reader.pool.base), all}}).is_ok());
  killed.go();
  const auto started = std::chrono::steady_clock::now() + 10s;
  const auto has_arrived = [&] {
    return std::any_of(reader.bytes(), reader.bytes() + kPool, [](std::uint8_t byte) { return byte != 0; });
  };
  while (!has_arrived() && std::chrono::steady_clock::now() < started) std::this_thread::yield();
  ASSERT_TRUE(has_arrived());
  killed.kill();
  reader.end(1, 1);
  std::memset(reader.bytes(), 0x66, kPool);
  // Another writer gets the whole arena, chunk after chunk; none of the killed one's regions is missing for long.
  ASSERT_TRUE(reader.expect(2, 1, {{0, heads_table(next.pool, reader.pool.base), all}}).is_ok());
  EXPECT_EQ(std::count(reader.bytes(), reader.bytes() + kPool, 0x66), static_cast<std::ptrdiff_t>(kPool));
  next.go();
  const auto arrives = std::chrono::steady_clock::now() + 10s;
  const auto is_whole = [&] {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (std::count(reader.bytes() + slot * kSlotBytes + 64, reader.bytes() + slot * kSlotBytes + 128, 0x66) > 32) {
        return false;
      }
    }
    return true;
  };
  while (!is_whole() && std::chrono::steady_clock::now() < arrives) std::this_thread::yield();
  EXPECT_TRUE(is_whole());
  next.kill();
  reader.end(2, 1);
}

}  // namespace
}  // namespace kvt
