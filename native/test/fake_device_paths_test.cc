// Slices on the bounce path, and the path that slices take against the one that is explained, over a stand-in for the
// driver. Needs no GPU.
#include <random>

#include "fake_device_base.h"
#include "fake_device_fixture.h"
#include "transport/router_transport.h"

namespace kvt::test {
namespace {

class FakePaths : public FakeDeviceTest {};

TEST_F(FakePaths, ThePathThatIsExplainedIsTheOneTaken) {
  const auto agent = make_router_transport(std::make_unique<FakeNixlBase>(true),
                                           {.choice = PathChoice::kAuto, .device = 0, .base_reaches_devices = true});
  const auto peer = make_router_transport(std::make_unique<FakeNixlBase>(true),
                                          {.choice = PathChoice::kAuto, .device = 0, .base_reaches_devices = true});
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  Region source;
  Region destination;
  std::vector<std::byte> metadata;
  for (Transport* const one : {agent.get(), peer.get()}) KVT_ASSERT_OK(one->open());
  KVT_ASSERT_OK(agent->allocate_device_region(0, kBytes, &source));
  KVT_ASSERT_OK(peer->allocate_device_region(0, kBytes, &destination));
  KVT_ASSERT_OK(peer->metadata(&metadata));
  KVT_ASSERT_OK(agent->begin_add_peer(1, metadata));
  Status error;
  await("the peer", [&] {
    peer->progress();
    agent->progress();
    return agent->poll_peer(1, &error) == PeerState::kReady;
  });
  const PeerPaths paths = agent->peer_paths(1);
  ASSERT_TRUE(paths.p2p.is_available && paths.rdma.is_available);
  std::mt19937 random(11);
  const auto pick = [&random](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  std::array<int, kDataPathCount> taken{};
  for (int i = 0; i < 2000; ++i) {
    // Slots of any size, whole or in part, in stretches of any length: what a run is depends on all three.
    const std::size_t slot = std::size_t{1} << pick(9, 23);
    const std::size_t part = slot >> pick(0, 2);
    const auto slots = static_cast<std::int32_t>(kBytes / slot);
    const SlotPool from{source.base, slot, slot, slots};
    const SlotPool to{destination.base, slot, slot, slots};
    auto table = std::make_shared<FragmentTable>();
    Fragment fragment;
    fragment.source = from;
    fragment.destination = to;
    fragment.bytes = part;
    fragment.count = 1;
    KVT_ASSERT_OK(FragmentTable::create({fragment}, table.get()));
    PlanGroup group{table, {}};
    const std::size_t wanted = pick(1, std::min<std::size_t>(static_cast<std::size_t>(slots), 20'000));
    const std::size_t stretch = std::size_t{1} << pick(0, 14);
    for (std::size_t k = 0; k < wanted; ++k) {
      const std::size_t at = (k + k / stretch) % static_cast<std::size_t>(slots);
      group.slot_pairs.insert(group.slot_pairs.end(), {static_cast<std::int32_t>(at), static_cast<std::int32_t>(at)});
    }
    const std::span<const PlanGroup> groups(&group, 1);
    const DataPath explained = path_of_slice(paths, true, groups, nullptr);
    const auto lane = static_cast<DataPath>(agent->route(1, 7, groups).lane);
    ASSERT_EQ(explained, lane) << "slots of " << slot << ", " << part << " each, " << wanted << " in stretches of "
                               << stretch;
    ++taken[static_cast<std::size_t>(lane)];
  }
  // Otherwise the plans show nothing.
  EXPECT_GT(taken[static_cast<std::size_t>(DataPath::kP2p)], 100);
  EXPECT_GT(taken[static_cast<std::size_t>(DataPath::kRdma)], 20);
  EXPECT_TRUE(agent->close());
  EXPECT_TRUE(peer->close());
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
