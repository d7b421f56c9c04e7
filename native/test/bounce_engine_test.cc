// The bounce path through real engines and transports: two agents of one process over the host transport and over
// NIXL with host memory, and two processes of which one is killed.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "engine/agent_engine.h"
#include "transport/bounce_transport.h"
#include "transport/host_transport.h"
#include "transport/nixl_transport.h"
#include "transport/router_transport.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSlotBytes = 16384;
constexpr std::int32_t kSlots = 512;
constexpr std::size_t kPool = kSlotBytes * kSlots;

BounceOptions small_arena() {
  return {.arena_bytes = std::size_t{1} << 20,
          .max_chunk_bytes = std::size_t{256} << 10,
          .max_inflight_chunks = 4,
          .request_timeout = 2000ms,
          .is_forced = true};
}

TransportFactory host_factory(std::optional<BounceOptions> bounce) {
  return [bounce](Status* error) -> std::unique_ptr<Transport> {
    std::unique_ptr<Transport> base = make_host_transport({}, error);
    if (bounce && base != nullptr) {
      BounceOptions options = *bounce;
      options.link_end_proves_end = true;
      base = make_bounce_transport(std::move(base), options, error);
    }
    return base == nullptr ? nullptr : make_router_transport(std::move(base), RouterOptions());
  };
}

TransportFactory nixl_factory(std::optional<BounceOptions> bounce, const std::string& name) {
  return [bounce, name](Status* error) -> std::unique_ptr<Transport> {
    const NixlOptions options{
        .agent_name = name, .library_path = "", .package_tree = KVT_PACKAGE_TREE, .peer_grace = 100ms};
    std::unique_ptr<Transport> base = make_nixl_transport(options, error);
    if (bounce && base != nullptr) {
      BounceOptions with_messages = *bounce;
      with_messages.link = BounceLinkKind::kMessages;
      base = make_bounce_transport(std::move(base), with_messages, error);
    }
    return base == nullptr ? nullptr : make_router_transport(std::move(base), RouterOptions());
  };
}

// One engine with one pool, whose replies and notices can be waited for.
class Agent {
 public:
  explicit Agent(TransportFactory factory) {
    std::promise<Status> opened;
    const Status started = AgentEngine::start(
        "bounce-test", std::move(factory), [&opened](const Status& status) { opened.set_value(status); },
        [this](std::vector<Notice> batch) {
          const std::lock_guard<std::mutex> lock(mutex_);
          for (Notice& notice : batch) {
            if (notice.kind == NoticeKind::kCompletion) notices_[notice.submission] = std::move(notice);
          }
          condition_.notify_all();
        },
        &engine_);
    EXPECT_TRUE(started.is_ok()) << started.message();
    const Status status = opened.get_future().get();
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::promise<void> done;
    engine_->push(AllocateRegion{kPool, [&](const Status& allocated, const Region& region) {
                                   EXPECT_TRUE(allocated.is_ok()) << allocated.message();
                                   pool = region;
                                   done.set_value();
                                 }});
    done.get_future().get();
  }
  ~Agent() { close(); }

  std::vector<std::byte> metadata() {
    std::promise<std::vector<std::byte>> bytes;
    engine_->push(GetMetadata{[&](const Status&, std::vector<std::byte> got) { bytes.set_value(std::move(got)); }});
    return bytes.get_future().get();
  }
  void add(PeerId peer, const std::vector<std::byte>& bytes) {
    std::promise<Status> added;
    engine_->push(AddPeer{peer, bytes, [&](const Status& status, const std::vector<Region>&, const PeerPaths&) {
                            added.set_value(status);
                          }});
    const Status status = added.get_future().get();
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  void remove(PeerId peer) {
    std::promise<void> removed;
    engine_->push(RemovePeer{peer, [&] { removed.set_value(); }});
    removed.get_future().get();
  }
  Status expect(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
    std::promise<Status> done;
    engine_->push(
        ExpectInbound{peer, ticket, std::move(groups), [&](const Status& status) { done.set_value(status); }});
    return done.get_future().get();
  }
  void end(PeerId peer, Ticket ticket) {
    std::promise<void> done;
    engine_->push(EndInbound{peer, ticket, [&] { done.set_value(); }});
    done.get_future().get();
  }
  void submit(Submission submission) { engine_->push(std::move(submission)); }
  void cancel(SubmissionId id) { engine_->push(CancelSubmission{id}); }
  Notice wait(SubmissionId id, std::chrono::seconds limit = 20s) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool came = condition_.wait_for(lock, limit, [&] { return notices_.contains(id); });
    EXPECT_TRUE(came) << "submission " << id << " has no completion";
    if (!came) return {};
    return notices_.at(id);
  }
  CloseReport close() {
    if (!engine_) return {};
    std::promise<CloseReport> closed;
    engine_->push(CloseAgent{std::chrono::steady_clock::now() + 5s,
                             [&](const CloseReport& report) { closed.set_value(report); }});
    const CloseReport report = closed.get_future().get();
    EXPECT_TRUE(engine_->wait_closed(5s));
    engine_.reset();
    return report;
  }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(pool.base); }

  Region pool;

 private:
  std::shared_ptr<AgentEngine> engine_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::map<SubmissionId, Notice> notices_;
};

// Pieces of heads: eight of 1536 bytes out of each slot, elsewhere on the other side.
std::shared_ptr<const FragmentTable> heads_table(std::uintptr_t from, std::uintptr_t to) {
  Fragment fragment;
  fragment.source = {from, kSlotBytes, kSlotBytes, kSlots};
  fragment.destination = {to, kSlotBytes, kSlotBytes, kSlots};
  fragment.source_offset = 256;
  fragment.destination_offset = 64;
  fragment.bytes = 1536;
  fragment.count = 8;
  fragment.source_stride = 2000;
  fragment.destination_stride = 1900;
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create({fragment}, table.get());
  EXPECT_TRUE(status.is_ok()) << status.message();
  return table;
}

std::vector<std::int32_t> shuffled_pairs(std::mt19937* random, std::size_t count) {
  std::vector<std::int32_t> from(kSlots);
  std::iota(from.begin(), from.end(), 0);
  std::vector<std::int32_t> to = from;
  std::shuffle(from.begin(), from.end(), *random);
  std::shuffle(to.begin(), to.end(), *random);
  std::vector<std::int32_t> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(from[i]);
    pairs.push_back(to[i]);
  }
  return pairs;
}

InboundGroup inbound_of(std::uint32_t key, std::shared_ptr<const FragmentTable> table,
                        std::span<const std::int32_t> pairs) {
  InboundGroup group{key, std::move(table), {}};
  for (std::size_t i = 1; i < pairs.size(); i += 2) group.slots.push_back(pairs[i]);
  return group;
}

Submission slice_of(SubmissionId id, PeerId peer, Ticket ticket, std::shared_ptr<const FragmentTable> table,
                    std::vector<std::int32_t> pairs, std::uint32_t key) {
  Submission submission;
  submission.id = id;
  submission.peer = peer;
  submission.flow = id;
  submission.ticket = ticket;
  submission.groups.push_back({std::move(table), std::move(pairs), key});
  return submission;
}

void fill(Agent* agent, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i + 4 <= kPool; i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(agent->bytes() + i, &word, 4);
  }
}

// What the destination must hold: `before` everywhere but in the pieces.
std::vector<std::uint8_t> expected_after(Agent* from, std::uint8_t before, const FragmentTable& table,
                                         std::span<const std::int32_t> pairs) {
  std::vector<std::uint8_t> out(kPool, before);
  const Fragment& fragment = table.fragments()[0];
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    for (std::size_t piece = 0; piece < fragment.count; ++piece) {
      const std::size_t source =
          static_cast<std::size_t>(pairs[i]) * kSlotBytes + fragment.source_offset + piece * fragment.source_stride;
      const std::size_t target = static_cast<std::size_t>(pairs[i + 1]) * kSlotBytes + fragment.destination_offset +
                                 piece * fragment.destination_stride;
      std::memcpy(out.data() + target, from->bytes() + source, fragment.bytes);
    }
  }
  return out;
}

void send_and_check(Agent* writer, Agent* reader, PeerId peer_of_reader, PeerId peer_of_writer) {
  std::mt19937 random(77);
  fill(writer, 5);
  std::memset(reader->bytes(), 0x11, kPool);
  const auto table = heads_table(writer->pool.base, reader->pool.base);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, 500);
  ASSERT_TRUE(reader->expect(peer_of_writer, 42, {inbound_of(3, table, pairs)}).is_ok());
  // In five slices, as chunks of a prefill come.
  for (std::size_t i = 0; i < 5; ++i) {
    const std::vector<std::int32_t> part(pairs.begin() + static_cast<std::ptrdiff_t>(200 * i),
                                         pairs.begin() + static_cast<std::ptrdiff_t>(200 * (i + 1)));
    writer->submit(slice_of(i + 1, peer_of_reader, 42, table, part, 3));
  }
  for (SubmissionId id = 1; id <= 5; ++id) {
    const Notice notice = writer->wait(id);
    ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
    ASSERT_EQ(notice.bytes, 100 * table->bytes_per_pair());
    ASSERT_TRUE(notice.drained);
  }
  const std::vector<std::uint8_t> expected = expected_after(writer, 0x11, *table, pairs);
  ASSERT_EQ(std::memcmp(reader->bytes(), expected.data(), kPool), 0);
  reader->end(peer_of_writer, 42);
}

struct Pair {
  Pair(const TransportFactory& one, const TransportFactory& other) : a(one), b(other) {
    const auto of_a = a.metadata();
    const auto of_b = b.metadata();
    a.add(1, of_b);
    b.add(1, of_a);
  }
  Agent a;
  Agent b;
};

TEST(BounceEngine, EveryByteArrivesOverTheHostTransport) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.a, &pair.b, 1, 1));
  EXPECT_TRUE(pair.a.close().drained);
  EXPECT_TRUE(pair.b.close().drained);
}

TEST(BounceEngine, EveryByteArrivesOverNixlWithHostMemory) {
  const NixlProbe probe = probe_nixl({.agent_name = "probe", .library_path = "", .package_tree = KVT_PACKAGE_TREE});
  if (!probe.available) {
    const char* required = std::getenv("KV_TRANSCEIVER_REQUIRE");
    if (required != nullptr && std::strstr(required, "nixl") != nullptr) FAIL() << probe.reason;
    GTEST_SKIP() << "BOUNCE OVER NIXL IS NOT TESTED: " << probe.reason;
  }
  Pair pair(nixl_factory(small_arena(), "bounce-a"), nixl_factory(small_arena(), "bounce-b"));
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.a, &pair.b, 1, 1));
  EXPECT_TRUE(pair.a.close().drained);
  EXPECT_TRUE(pair.b.close().drained);
}

TEST(BounceEngine, BothDirectionsAtOnceInTheSmallestArenaDoNotWaitForEachOther) {
  BounceOptions options = small_arena();
  options.arena_bytes = 2 * options.max_chunk_bytes;
  Pair pair(host_factory(options), host_factory(options));
  std::mt19937 random(3);
  const auto there = heads_table(pair.a.pool.base, pair.b.pool.base);
  const auto back = heads_table(pair.b.pool.base, pair.a.pool.base);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
  for (Ticket ticket = 1; ticket <= 8; ++ticket) {
    ASSERT_TRUE(pair.b.expect(1, ticket, {inbound_of(0, there, pairs)}).is_ok());
    ASSERT_TRUE(pair.a.expect(1, ticket, {inbound_of(0, back, pairs)}).is_ok());
    pair.a.submit(slice_of(ticket, 1, ticket, there, pairs, 0));
    pair.b.submit(slice_of(ticket, 1, ticket, back, pairs, 0));
  }
  for (SubmissionId id = 1; id <= 8; ++id) {
    EXPECT_EQ(pair.a.wait(id).outcome, Outcome::kTransferred) << pair.a.wait(id).error.message();
    EXPECT_EQ(pair.b.wait(id).outcome, Outcome::kTransferred) << pair.b.wait(id).error.message();
  }
}

TEST(BounceEngine, ATicketThatNobodyExpectsIsRefusedWithTheReason) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::memset(pair.b.bytes(), 0x22, kPool);
  pair.a.submit(slice_of(1, 1, 9, table, {0, 0, 1, 1}, 0));
  const Notice notice = pair.a.wait(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  EXPECT_NE(notice.error.message().find("expects nothing"), std::string::npos) << notice.error.message();
  EXPECT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x22), static_cast<std::ptrdiff_t>(kPool));
}

TEST(BounceEngine, ASlotOfAnotherTicketIsRefusedAndNoPageIsTouched) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::memset(pair.b.bytes(), 0x33, kPool);
  ASSERT_TRUE(pair.b.expect(1, 1, {{0, table, {3, 4, 5}}}).is_ok());
  ASSERT_TRUE(pair.b.expect(1, 2, {{0, table, {6}}}).is_ok());
  pair.a.submit(slice_of(1, 1, 1, table, {0, 3, 1, 6}, 0));
  const Notice notice = pair.a.wait(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_NE(notice.error.message().find("does not belong"), std::string::npos) << notice.error.message();
  EXPECT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x33), static_cast<std::ptrdiff_t>(kPool));
}

TEST(BounceEngine, PagesAreFreeTheMomentTheReceiveIsEnded) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  std::mt19937 random(8);
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  fill(&pair.a, 1);
  for (Ticket ticket = 1; ticket <= 30; ++ticket) {
    const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
    ASSERT_TRUE(pair.b.expect(1, ticket, {inbound_of(0, table, pairs)}).is_ok());
    pair.a.submit(slice_of(ticket, 1, ticket, table, pairs, 0));
    // At another moment of the transfer each time.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 4000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    pair.b.end(1, ticket);
    std::memset(pair.b.bytes(), 0x44, kPool);
    const Notice notice = pair.a.wait(ticket);
    ASSERT_TRUE(notice.drained) << notice.error.message();
    ASSERT_EQ(std::count(pair.b.bytes(), pair.b.bytes() + kPool, 0x44), static_cast<std::ptrdiff_t>(kPool));
  }
  // Nothing of the arena was lost on the way.
  ASSERT_NO_FATAL_FAILURE(send_and_check(&pair.b, &pair.a, 1, 1));
}

TEST(BounceEngine, ACancelEndsASliceThatWaitsForItsReceiver) {
  BounceOptions options = small_arena();
  options.request_timeout = 60s;
  Pair pair(host_factory(options), host_factory(options));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  // The receiver parks what it does not know yet, so the slice is in flight when the cancel comes.
  pair.a.submit(slice_of(1, 1, 5, table, {0, 0}, 0));
  pair.a.cancel(1);
  const Notice notice = pair.a.wait(1, 5s);
  EXPECT_EQ(notice.outcome, Outcome::kCancelled) << notice.error.message();
  EXPECT_TRUE(notice.drained);
}

TEST(BounceEngine, SlicesOfFewOrLargePiecesGoByTheTransportBelow) {
  BounceOptions options = small_arena();
  options.is_forced = false;
  options.min_descriptor_count = 1000;
  Pair pair(host_factory(options), host_factory(options));
  fill(&pair.a, 2);
  std::memset(pair.b.bytes(), 0x55, kPool);
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  // 124 pairs are 992 pieces: no registration is needed. 126 are 1008.
  std::mt19937 random(4);
  const std::vector<std::int32_t> few = shuffled_pairs(&random, 124);
  pair.a.submit(slice_of(1, 1, 7, table, few, 0));
  EXPECT_EQ(pair.a.wait(1).outcome, Outcome::kTransferred);
  const std::vector<std::uint8_t> expected = expected_after(&pair.a, 0x55, *table, few);
  EXPECT_EQ(std::memcmp(pair.b.bytes(), expected.data(), kPool), 0);
  pair.a.submit(slice_of(2, 1, 7, table, shuffled_pairs(&random, 126), 0));
  EXPECT_EQ(pair.a.wait(2).outcome, Outcome::kFailed) << "it was not bounced";
  pair.a.submit(slice_of(3, 1, 0, table, few, 0));
  EXPECT_EQ(pair.a.wait(3).outcome, Outcome::kTransferred) << "without a ticket";
}

TEST(BounceEngine, APairThatDoesNotAgreeGoesByTheTransportBelow) {
  BounceOptions other = small_arena();
  other.max_chunk_bytes /= 2;
  for (const auto& factory : {host_factory(std::nullopt), host_factory(other)}) {
    Pair pair(host_factory(small_arena()), factory);
    fill(&pair.a, 2);
    fill(&pair.b, 3);
    const auto there = heads_table(pair.a.pool.base, pair.b.pool.base);
    ASSERT_TRUE(pair.b.expect(1, 1, {{0, there, {1}}}).is_ok());
    pair.a.submit(slice_of(1, 1, 1, there, {0, 1}, 0));
    ASSERT_EQ(pair.a.wait(1).outcome, Outcome::kTransferred) << pair.a.wait(1).error.message();
    pair.b.submit(slice_of(1, 1, 1, heads_table(pair.b.pool.base, pair.a.pool.base), {0, 1}, 0));
    ASSERT_EQ(pair.b.wait(1).outcome, Outcome::kTransferred) << pair.b.wait(1).error.message();
    pair.b.end(1, 1);
  }
}

TEST(BounceEngine, ARemovedPeerFailsItsSlicesAndGivesItsRegionsBack) {
  Pair pair(host_factory(small_arena()), host_factory(small_arena()));
  const auto table = heads_table(pair.a.pool.base, pair.b.pool.base);
  std::mt19937 random(6);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, kSlots);
  ASSERT_TRUE(pair.b.expect(1, 1, {inbound_of(0, table, pairs)}).is_ok());
  pair.a.submit(slice_of(1, 1, 1, table, pairs, 0));
  pair.a.remove(1);
  const Notice notice = pair.a.wait(1);
  EXPECT_NE(notice.outcome, Outcome::kCancelled);
  EXPECT_TRUE(notice.drained);
  pair.b.end(1, 1);
}

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
    EXPECT_TRUE(await([&] { return at(BounceGauge::kArenaUsedBytes) == 0; }));
    EXPECT_EQ(at(BounceGauge::kLostBytes), 0U);
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
