// Slices on the bounce path, and the path that slices take against the one that is explained, over a stand-in for the
// driver. Needs no GPU.
#include <random>

#include "fake_device_base.h"
#include "fake_device_fixture.h"
#include "transport/bounce_transport.h"
#include "transport/router_transport.h"

namespace kvt::test {
namespace {

class FakePaths : public FakeDeviceTest {
 protected:
  static constexpr std::size_t kBytes = std::size_t{96} << 20;

  // An agent over NIXL on one GPU, with an arena there if `arena` says what is bounced.
  static std::unique_ptr<Transport> agent_on(int device, PathChoice choice, std::optional<BounceThresholds> arena) {
    std::unique_ptr<Transport> base = std::make_unique<FakeNixlBase>(true);
    if (arena) {
      Status error;
      base = make_bounce_transport(std::move(base),
                                   {.arena_bytes = std::size_t{4} << 20,
                                    .max_chunk_bytes = std::size_t{1} << 20,
                                    .is_forced = true,
                                    .arena_device = device},
                                   &error);
      EXPECT_NE(base, nullptr) << error.message();
    }
    return make_router_transport(std::move(base), {.choice = choice,
                                                   .device = device,
                                                   .base_reaches_devices = true,
                                                   .arena_device = arena ? device : -1,
                                                   .bounce = arena});
  }

  void meet(PathChoice choice, std::optional<BounceThresholds> arena, int device = 0, int peer_device = 0) {
    agent_ = agent_on(device, choice, arena);
    peer_ = agent_on(peer_device, choice, arena);
    std::vector<std::byte> metadata;
    std::vector<std::byte> own;
    for (Transport* const one : {agent_.get(), peer_.get()}) KVT_ASSERT_OK(one->open());
    KVT_ASSERT_OK(agent_->allocate_device_region(device, kBytes, &source_));
    KVT_ASSERT_OK(peer_->allocate_device_region(peer_device, kBytes, &destination_));
    KVT_ASSERT_OK(peer_->metadata(&metadata));
    KVT_ASSERT_OK(agent_->metadata(&own));
    KVT_ASSERT_OK(agent_->begin_add_peer(1, metadata));
    KVT_ASSERT_OK(peer_->begin_add_peer(1, own));
    agent_->name_peer(1, "decode-0");
    Status error;
    await("the peer", [&] {
      peer_->progress();
      agent_->progress();
      return agent_->poll_peer(1, &error) == PeerState::kReady;
    });
  }
  void part() {
    for (Transport* const one : {agent_.get(), peer_.get()}) {
      one->remove_peer(1);
      EXPECT_TRUE(one->close());
    }
    agent_.reset();
    peer_.reset();
  }

  // Slots of any size, whole or in part, in stretches of any length and in line or not: what a slice costs depends on
  // all of them.
  PlanGroup any_group() {
    const auto pick = [this](std::size_t low, std::size_t high) {
      return std::uniform_int_distribution<std::size_t>(low, high)(random_);
    };
    const std::size_t slot = std::size_t{1} << pick(9, 23);
    const auto slots = static_cast<std::int32_t>(kBytes / slot) - 1;
    Fragment fragment;
    fragment.source = {source_.base, slot, slot, slots};
    fragment.destination = {destination_.base + 4 * pick(0, 1), slot, slot, slots};
    fragment.bytes = slot >> pick(0, 2);
    fragment.count = 1;
    auto table = std::make_shared<FragmentTable>();
    EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
    PlanGroup group{table, {}};
    const std::size_t wanted = pick(1, std::min<std::size_t>(static_cast<std::size_t>(slots), 20'000));
    const std::size_t stretch = std::size_t{1} << pick(0, 14);
    for (std::size_t k = 0; k < wanted; ++k) {
      const std::size_t at = (k + k / stretch) % static_cast<std::size_t>(slots);
      group.slot_pairs.insert(group.slot_pairs.end(), {static_cast<std::int32_t>(at), static_cast<std::int32_t>(at)});
    }
    return group;
  }

  // How many of 2000 slices took each path; every one took the path that is explained.
  std::array<int, kDataPathCount> taken(const std::optional<BounceThresholds>& arena) {
    std::array<int, kDataPathCount> out{};
    const PeerPaths paths = agent_->peer_paths(1);
    for (int i = 0; i < 2000; ++i) {
      const PlanGroup group = any_group();
      const std::span<const PlanGroup> groups(&group, 1);
      const DataPath explained = path_of_slice(paths, true, groups, arena ? &*arena : nullptr);
      const auto lane = static_cast<DataPath>(agent_->route(1, 7, groups).lane);
      EXPECT_EQ(explained, lane) << "slots of " << group.table->fragments()[0].source.slot_stride << ", "
                                 << group.table->fragments()[0].bytes << " each, " << group.slot_pairs.size() / 2;
      ++out[static_cast<std::size_t>(lane)];
    }
    return out;
  }
  // What is said of the way to a peer on that GPU, and how often a slow link is told of.
  void expect_link(int peer_device, GpuLink link, const std::string& said, std::size_t told) {
    meet(PathChoice::kAuto, std::nullopt, 0, peer_device);
    const PeerPaths paths = agent_->peer_paths(1);
    EXPECT_TRUE(paths.p2p.is_available);
    EXPECT_EQ(paths.link, link) << said;
    EXPECT_NE(paths.p2p.reason.find(said), std::string::npos) << paths.p2p.reason;
    std::vector<std::string> advice;
    Status error;
    (void)agent_->poll_peer(1, &error);
    agent_->take_advice(&advice);
    std::erase_if(advice, [](const std::string& text) { return text.find("PCIe") == std::string::npos; });
    EXPECT_EQ(advice.size(), told) << said;
    for (const std::string& text : advice) {
      EXPECT_EQ(text.find("peer decode-0: its GPU is reached over PCIe"), 0U) << text;
    }
    part();
  }
  static int of(const std::array<int, kDataPathCount>& counts, DataPath path) {
    return counts[static_cast<std::size_t>(path)];
  }

  std::mt19937 random_{11};
  std::unique_ptr<Transport> agent_, peer_;
  Region source_, destination_;
};

TEST_F(FakePaths, ThePathThatIsExplainedIsTheOneTaken) {
  meet(PathChoice::kAuto, std::nullopt);
  ASSERT_TRUE(agent_->peer_paths(1).p2p.is_available && agent_->peer_paths(1).rdma.is_available);
  const auto counts = taken(std::nullopt);
  // Otherwise the plans show nothing. Long runs out of line are faster by NIXL than by kernels.
  EXPECT_GT(of(counts, DataPath::kP2p), 100);
  EXPECT_GT(of(counts, DataPath::kRdma), 20);
  part();
}

TEST_F(FakePaths, WhatTheChoiceGivesToTheArenaGoesThere) {
  for (const BounceRule rule : {BounceRule::kCost, BounceRule::kThresholds}) {
    const BounceThresholds arena{.rule = rule};
    // No p2p, so that the others are left.
    meet(PathChoice::kRdma, arena);
    const PeerPaths paths = agent_->peer_paths(1);
    ASSERT_TRUE(paths.rdma.is_available && paths.bounce.is_available && paths.bounces_device &&
                !paths.p2p.is_available);
    const auto counts = taken(arena);
    EXPECT_GT(of(counts, DataPath::kBounce), 100);
    EXPECT_GT(of(counts, DataPath::kRdma), 100);
    part();
  }
  // Thresholds refuse long pieces, and the cost of kernels on pages out of line is compared to what is left.
  const BounceThresholds arena{.min_descriptor_count = 1 << 30, .rule = BounceRule::kThresholds};
  meet(PathChoice::kAuto, arena);
  const auto counts = taken(arena);
  EXPECT_EQ(of(counts, DataPath::kBounce), 0);
  EXPECT_GT(of(counts, DataPath::kP2p), 100);
  part();
}

TEST_F(FakePaths, SayWhichLinkJoinsTheGpusAndTellOfASlowOneOnce) {
  FakeCuda::order({"devices 2"});
  expect_link(1, GpuLink::kNvlink, "; over NVLink", 0);
  FakeCuda::order({"devices 2", "pcie"});
  expect_link(1, GpuLink::kPcie, "; over PCIe, whose rate is assumed (25 GB/s) and not measured", 1);
  FakeCuda::order({"devices 2", "fail cuDeviceGetP2PAttribute 801"});
  expect_link(1, GpuLink::kUnknown, "the driver does not say over which link", 0);
  FakeCuda::order({"pcie"});
  expect_link(0, GpuLink::kSameGpu, "; they are on the same GPU", 0);
  FakeCuda::order({});
}

class FakeBounce : public FakeDeviceTest {
 protected:
  static constexpr Ticket kTicket = 77;

  void SetUp() override {
    FakeDeviceTest::SetUp();
    KVT_ASSERT_OK(writer_->opening());
    KVT_ASSERT_OK(receiver_->opening());
    KVT_ASSERT_OK(writer_->allocate(kPool, &source_));
    KVT_ASSERT_OK(receiver_->allocate(kPool, &destination_));
    const std::vector<std::byte> ours = writer_->metadata();
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata()));
    KVT_ASSERT_OK(receiver_->add_peer(1, ours));
    plan_ = scattered(source_, destination_);
    fill(source_, 0x33);
    fill(destination_, 0x77);
    InboundGroup inbound{.key = 0, .table = plan_.groups[0].table, .slots = {}};
    const std::vector<std::int32_t>& pairs = plan_.groups[0].slot_pairs;
    for (std::size_t i = 1; i < pairs.size(); i += 2) inbound.slots.push_back(pairs[i]);
    KVT_ASSERT_OK(receiver_->expect_inbound(1, kTicket, {inbound}));
  }

  Submission slice(SubmissionId id, std::shared_ptr<const ReadyEvent> after) const {
    return {.id = id, .peer = 1, .flow = id, .groups = plan_.groups, .after = std::move(after), .ticket = kTicket};
  }

  std::unique_ptr<TestAgent> writer_ = std::make_unique<TestAgent>("writer", bounced());
  std::unique_ptr<TestAgent> receiver_ = std::make_unique<TestAgent>("receiver", bounced());
  Region source_, destination_;
  PlacedPlan plan_;
};

TEST_F(FakeBounce, ASliceBehindAForwardThatFailsMovesNothing) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(slice(1, event));
  event->fail("the forward step failed");
  writer_->events_changed();
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_EQ(notice.bytes, 0U);
  EXPECT_NE(notice.error.message().find("the forward step failed"), std::string::npos) << notice.error.message();
  EXPECT_EQ(FakeCuda::calls("cuLaunchKernel"), before);
  // The receive lives on: the next forward writes the same pages.
  FakeCuda::order({});
  writer_->submit(slice(2, forward_event()));
  const Notice next = writer_->settled(2);
  ASSERT_EQ(next.outcome, Outcome::kTransferred) << next.error.message();
  await("the scatter", [&] { return is_filled(destination_, 0x33); });
}

// By the transports alone, whose threads ask them how long they may sleep.
class FakeBounceThread : public FakeBounce {
 protected:
  void SetUp() override {
    FakeDeviceTest::SetUp();
    Status error;
    std::vector<std::byte> metadata;
    for (auto* const side : {&sender_, &taker_}) {
      *side = bounced()(&error);
      ASSERT_NE(*side, nullptr) << error.message();
      KVT_ASSERT_OK((*side)->open());
    }
    KVT_ASSERT_OK(sender_->allocate_region(kPool, &source_));
    KVT_ASSERT_OK(taker_->allocate_region(kPool, &destination_));
    KVT_ASSERT_OK(sender_->metadata(&metadata));
    KVT_ASSERT_OK(taker_->begin_add_peer(1, metadata));
    KVT_ASSERT_OK(taker_->metadata(&metadata));
    KVT_ASSERT_OK(sender_->begin_add_peer(1, metadata));
    await("the peers", [&] {
      turn();
      return sender_->poll_peer(1, &error) == PeerState::kReady && taker_->poll_peer(1, &error) == PeerState::kReady;
    });
    plan_ = scattered(source_, destination_);
    InboundGroup inbound{.key = 0, .table = plan_.groups[0].table, .slots = {}};
    const std::vector<std::int32_t>& pairs = plan_.groups[0].slot_pairs;
    for (std::size_t i = 1; i < pairs.size(); i += 2) inbound.slots.push_back(pairs[i]);
    KVT_ASSERT_OK(taker_->expect_inbound(1, kTicket, {inbound}));
  }

  void turn() {
    sender_->progress();
    taker_->progress();
    // As the engine does: what nobody took keeps its thread awake.
    std::vector<BatchId> released;
    sender_->take_released(&released);
  }
  // Whether its thread would look again at once.
  static bool is_awake(const Transport& side, TimePoint at) {
    const std::optional<TimePoint> next = side.next_wakeup(at);
    return next && *next <= at;
  }

  std::unique_ptr<Transport> sender_, taker_;
};

TEST_F(FakeBounceThread, TakesNoSliceBeforeItsEvent) {
  FakeCuda::order({"hold"});
  const auto event = forward_event();
  EXPECT_FALSE(sender_->route(1, kTicket, plan_.groups).device_waits);
  const BatchResult result = sender_->post_slice(1, 1, kTicket, plan_.groups, event->device_event());
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_EQ(result.error.code(), StatusCode::kInternal);
  EXPECT_FALSE(result.may_still_land);
  sender_->remove_peer(1);
  taker_->remove_peer(1);
  EXPECT_TRUE(sender_->close());
  EXPECT_TRUE(taker_->close());
}

TEST_F(FakeBounceThread, IsAwakeWhileASliceGoesOnAndForTheNextOneAndNoLonger) {
  using namespace std::chrono_literals;
  FakeCuda::order({"hide"});
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  ASSERT_EQ(sender_->post_slice(1, 1, kTicket, plan_.groups, nullptr).state, BatchState::kInFlight);
  await("the gather's launch", [&] {
    turn();
    return FakeCuda::calls("cuLaunchKernel") > before;
  });
  // A gather that takes long.
  EXPECT_FALSE(is_awake(*sender_, std::chrono::steady_clock::now() + 5ms));
  // Before it ends, so that a slow machine cannot make it too late.
  const TimePoint soon = std::chrono::steady_clock::now();
  FakeCuda::order({});
  BatchResult result{.state = BatchState::kInFlight, .may_still_land = false, .error = {}};
  await("the slice", [&] {
    turn();
    result = sender_->poll(1);
    return result.state != BatchState::kInFlight;
  });
  EXPECT_EQ(result.state, BatchState::kDone) << result.error.message();
  for (const Transport* const side : {sender_.get(), taker_.get()}) {
    EXPECT_TRUE(is_awake(*side, soon));
    EXPECT_FALSE(is_awake(*side, std::chrono::steady_clock::now() + 5ms));
  }
  sender_->remove_peer(1);
  taker_->remove_peer(1);
  EXPECT_TRUE(sender_->close());
  EXPECT_TRUE(taker_->close());
}

}  // namespace
}  // namespace kvt::test
