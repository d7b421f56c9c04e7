#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "engine/submission.h"
#include "fake_transport.h"
#include "transport/process_watch.h"
#include "transport/router_metadata.h"
#include "transport/router_transport.h"

namespace kvt {
namespace {

using test::FakeTransport;
using test::submission_of;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

RouterMetadata sample() {
  RouterMetadata made{.base = bytes_of({1, 2, 3}), .p2p = bytes_of({4, 5}), .more = bytes_of({6}), .process = {}};
  EXPECT_TRUE(own_identity(&made.process).is_ok());
  made.note_lane[11] = std::byte{9};
  return made;
}

TEST(RouterMetadataTest, ComesBackAsItWas) {
  const RouterMetadata made = sample();
  RouterMetadata read;
  ASSERT_TRUE(decode_router_metadata(encode_router_metadata(made), &read).is_ok());
  EXPECT_EQ(read.base, made.base);
  EXPECT_EQ(read.p2p, made.p2p);
  EXPECT_EQ(read.more, made.more);
  EXPECT_EQ(read.process, made.process);
  EXPECT_EQ(read.note_lane, made.note_lane);
}

TEST(RouterMetadataTest, AnyDamageIsRefused) {
  const std::vector<std::byte> good = encode_router_metadata(sample());
  RouterMetadata read;
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(decode_router_metadata(std::span(good).first(length), &read).code(), StatusCode::kTransport) << length;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_EQ(decode_router_metadata(bad, &read).code(), StatusCode::kTransport) << at;
  }
}

class ProcessWatchTest : public ::testing::Test {
 protected:
  ProcessWatchTest() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), watcher_(epoll_.get()) {}

  // A process that does nothing until it is killed, and who it is.
  pid_t start(ProcessIdentity* identity) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ProcessIdentity self;
      (void)!own_identity(&self).is_ok();
      (void)!::write(pipe[1], &self, sizeof self);
      while (true) ::pause();
    }
    EXPECT_EQ(::read(pipe[0], identity, sizeof *identity), static_cast<ssize_t>(sizeof *identity));
    ::close(pipe[0]);
    ::close(pipe[1]);
    return child;
  }
  static void end(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }

  std::vector<WatchId> ended_within(std::chrono::milliseconds limit) {
    std::vector<WatchId> ended;
    const TimePoint until = std::chrono::steady_clock::now() + limit;
    while (ended.empty() && std::chrono::steady_clock::now() < until) {
      epoll_event event{};
      if (::epoll_wait(epoll_.get(), &event, 1, 5) == 1) {
        watcher_.on_event(event.data.u64 & ~ProcessWatcher::kEventBit, std::chrono::steady_clock::now());
      }
      watcher_.take_ended(std::chrono::steady_clock::now(), &ended);
    }
    return ended;
  }

  UniqueFd epoll_;
  ProcessWatcher watcher_;
};

TEST_F(ProcessWatchTest, TellsTheEndOfAProcessOnce) {
  ProcessIdentity identity;
  const pid_t child = start(&identity);
  ASSERT_TRUE(watcher_.add(7, identity).is_ok());
  EXPECT_EQ(watcher_.add(7, identity).code(), StatusCode::kState);
  EXPECT_TRUE(ended_within(std::chrono::milliseconds(50)).empty());
  EXPECT_FALSE(watcher_.next_deadline().has_value());
  end(child);
  EXPECT_EQ(ended_within(std::chrono::seconds(5)), std::vector<WatchId>{7});
  EXPECT_TRUE(ended_within(std::chrono::milliseconds(50)).empty());
}

TEST_F(ProcessWatchTest, AProcessThatHasEndedAlreadyIsToldToo) {
  ProcessIdentity identity;
  end(start(&identity));
  ASSERT_TRUE(watcher_.add(1, identity).is_ok());
  EXPECT_EQ(ended_within(std::chrono::seconds(5)), std::vector<WatchId>{1});
}

TEST_F(ProcessWatchTest, ANumberThatIsAnothersByNowCountsAsEnded) {
  ProcessIdentity identity;
  ASSERT_TRUE(own_identity(&identity).is_ok());
  identity.start_time += 1;
  ASSERT_TRUE(watcher_.add(1, identity).is_ok());
  EXPECT_EQ(ended_within(std::chrono::seconds(5)), std::vector<WatchId>{1});
}

TEST_F(ProcessWatchTest, AProcessWhoseEntryCannotBeReadIsNotTakenForEnded) {
  ProcessIdentity identity;
  const pid_t child = start(&identity);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> taken;
  // Room for the descriptors of the first reads of add(), which close them again, but not for one more beside the
  // process's own.
  const rlimit tight{64, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.emplace_back(fd);
  taken.pop_back();
  EXPECT_EQ(watcher_.add(7, identity).code(), StatusCode::kCapability);
  taken.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(ended_within(std::chrono::milliseconds(50)).empty());
  ASSERT_TRUE(watcher_.add(7, identity).is_ok());
  end(child);
  EXPECT_EQ(ended_within(std::chrono::seconds(5)), std::vector<WatchId>{7});
}

TEST_F(ProcessWatchTest, OtherMachinesAndNamespacesCannotBeWatched) {
  ProcessIdentity identity;
  ASSERT_TRUE(own_identity(&identity).is_ok());
  ProcessIdentity other = identity;
  other.boot_id[3] ^= std::byte{1};
  EXPECT_EQ(watcher_.add(1, other).code(), StatusCode::kCapability);
  other = identity;
  other.pid_namespace += 1;
  EXPECT_EQ(watcher_.add(1, other).code(), StatusCode::kCapability);
  EXPECT_EQ(watcher_.add(1, ProcessIdentity{}).code(), StatusCode::kCapability);
}

TEST(RouterTest, HostMemoryGoesByTheBaseTransport) {
  auto owned = std::make_unique<FakeTransport>();
  FakeTransport* const base = owned.get();
  const auto router = make_router_transport(std::move(owned), RouterOptions());
  ASSERT_TRUE(router->open().is_ok());
  std::vector<std::byte> metadata;
  ASSERT_TRUE(router->metadata(&metadata).is_ok());
  ASSERT_TRUE(router->begin_add_peer(1, metadata).is_ok());
  Status error;
  ASSERT_EQ(router->poll_peer(1, &error), PeerState::kReady);
  EXPECT_FALSE(router->peer_paths(1).p2p.is_available);
  EXPECT_FALSE(router->peer_paths(1).p2p.reason.empty());
  EXPECT_FALSE(router->peer_paths(1).rdma.reason.empty());

  const Submission slice = submission_of(1, 1, 0, 2);
  const SliceRoute route = router->route(1, 0, slice.groups);
  EXPECT_FALSE(route.is_whole);
  EXPECT_EQ(route.limits.max_runs, base->batch_limits.max_runs);
  const kvt::Run run{0x100000, 0x900000, 64};
  EXPECT_EQ(router->post(5, 1, std::span(&run, 1)).state, BatchState::kInFlight);
  EXPECT_EQ(router->poll(5).state, BatchState::kInFlight);
  base->finish(5);
  EXPECT_EQ(router->poll(5).state, BatchState::kDone);
  router->remove_peer(1);
  EXPECT_EQ(base->removed, std::vector<PeerId>{1});
  EXPECT_TRUE(router->close());
  EXPECT_TRUE(base->is_closed);
}

TEST(RouterTest, ManySmallDescriptorsAreToldOfOnceForEachPeerAndNoOthersAre) {
  const auto router =
      make_router_transport(std::make_unique<FakeTransport>(), {.device = {}, .base_reaches_devices = true});
  ASSERT_TRUE(router->open().is_ok());
  std::vector<std::byte> metadata;
  ASSERT_TRUE(router->metadata(&metadata).is_ok());
  Status error;
  for (const PeerId peer : {1U, 2U}) {
    ASSERT_TRUE(router->begin_add_peer(peer, metadata).is_ok());
    router->name_peer(peer, peer == 1 ? "decode-0" : "decode-1");
    ASSERT_EQ(router->poll_peer(peer, &error), PeerState::kReady);
  }
  const auto told = [&] {
    std::vector<std::string> advice;
    router->take_advice(&advice);
    return advice;
  };
  (void)told();
  const Submission few = submission_of(1, 1, 0, 1023, 64);
  const Submission large = submission_of(2, 1, 0, 2048, 32768);
  const Submission many = submission_of(3, 1, 0, 2048, 64);
  (void)router->route(1, 7, few.groups);
  (void)router->route(1, 7, large.groups);
  EXPECT_EQ(told(), std::vector<std::string>());
  for (int i = 0; i < 3; ++i) (void)router->route(1, 7, many.groups);
  const std::string text =
      ": about 2048 descriptors of 64 bytes on average, one per contiguous run, each of which holds up the progress "
      "thread; set kvCacheBounceSizeMb on both sides (bounce.sizeBytes of createAgent, with device where pages are on "
      "a "
      "GPU): small pieces then travel packed";
  EXPECT_EQ(told(), std::vector<std::string>{"peer decode-0" + text});
  (void)router->route(2, 7, many.groups);
  EXPECT_EQ(told(), std::vector<std::string>{"peer decode-1" + text});
  EXPECT_TRUE(router->close());
}

TEST(RouterTest, WhoAskedForTheRdmaPathIsNotToldOfAnother) {
  const RouterOptions options{.choice = PathChoice::kRdma, .device = {}, .base_reaches_devices = true};
  const auto router = make_router_transport(std::make_unique<FakeTransport>(), options);
  ASSERT_TRUE(router->open().is_ok());
  std::vector<std::byte> metadata;
  std::vector<std::string> advice;
  Status error;
  ASSERT_TRUE(router->metadata(&metadata).is_ok());
  ASSERT_TRUE(router->begin_add_peer(1, metadata).is_ok());
  ASSERT_EQ(router->poll_peer(1, &error), PeerState::kReady);
  (void)router->route(1, 7, submission_of(3, 1, 0, 2048, 64).groups);
  router->take_advice(&advice);
  EXPECT_EQ(advice, std::vector<std::string>());
  EXPECT_TRUE(router->close());
}

TEST(RouterTest, MetadataOfTheBaseTransportAloneIsRefused) {
  const auto router = make_router_transport(std::make_unique<FakeTransport>(), RouterOptions());
  ASSERT_TRUE(router->open().is_ok());
  EXPECT_EQ(router->begin_add_peer(1, bytes_of({7, 7, 7})).code(), StatusCode::kTransport);
  EXPECT_TRUE(router->close());
}

// Without an arena, and with one whose rule is `rule`.
DataPath path_of(const PeerPaths& paths, const Submission& slice, std::optional<BounceRule> rule) {
  const BounceThresholds bounce{.rule = rule.value_or(BounceRule::kCost)};
  return path_of_slice(paths, true, slice.groups, rule ? &bounce : nullptr);
}

TEST(PathChoiceTest, ScatteredPagesGoByKernelsAndUnreachablePeersByWhatThereIs) {
  const Submission scattered = submission_of(1, 1, 0, 2048, 32768);
  const SliceShape shape = shape_of(scattered.groups);
  EXPECT_EQ(shape.bytes, std::uint64_t{2048} * 32768);
  EXPECT_EQ(shape.runs, 2048U);
  EXPECT_EQ(shape.slots, 2048U);
  PeerPaths paths;
  paths.rdma.is_available = true;
  EXPECT_EQ(path_of(paths, scattered, std::nullopt), DataPath::kRdma);
  EXPECT_EQ(path_of(paths, scattered, BounceRule::kCost), DataPath::kRdma) << "the peer has no arena";
  paths.bounce.is_available = true;
  EXPECT_EQ(path_of(paths, scattered, BounceRule::kCost), DataPath::kRdma)
      << "an arena in host memory takes no page of a GPU";
  paths.bounces_device = true;
  EXPECT_EQ(path_of(paths, scattered, std::nullopt), DataPath::kRdma);
  EXPECT_EQ(path_of(paths, scattered, BounceRule::kCost), DataPath::kBounce);
  paths.p2p.is_available = true;
  EXPECT_EQ(path_of(paths, scattered, BounceRule::kCost), DataPath::kP2p);
  EXPECT_EQ(path_of(paths, scattered, BounceRule::kThresholds), DataPath::kP2p);
  // One long run is as fast by NIXL, and never slower than 2 % by the copy engine of p2p.
  const SliceShape whole{.bytes = std::uint64_t{256} << 20, .runs = 1, .slots = 1};
  EXPECT_LE(estimate_us(DataPath::kP2p, whole), 1.02 * estimate_us(DataPath::kRdma, whole));
}

TEST(PathChoiceTest, BesideP2pTheCheaperOfRdmaAndBounceIsTakenUnlessTheOperatorSetThresholds) {
  PeerPaths paths;
  paths.rdma.is_available = paths.bounce.is_available = paths.bounces_device = true;
  const struct {
    std::int32_t count;
    std::size_t bytes;
    DataPath by_cost;
    DataPath by_thresholds;
  } rows[] = {
      {1000, 4096, DataPath::kBounce, DataPath::kRdma},  {1024, 4096, DataPath::kBounce, DataPath::kBounce},
      {2048, 32768, DataPath::kBounce, DataPath::kRdma}, {1, 4096, DataPath::kRdma, DataPath::kRdma},
      {10, 32768, DataPath::kRdma, DataPath::kRdma},     {64, std::size_t{16} << 20, DataPath::kRdma, DataPath::kRdma},
  };
  for (const auto& row : rows) {
    const Submission slice = submission_of(1, 1, 0, row.count, row.bytes);
    EXPECT_EQ(path_of(paths, slice, BounceRule::kCost), row.by_cost) << row.count << " x " << row.bytes;
    EXPECT_EQ(path_of(paths, slice, BounceRule::kThresholds), row.by_thresholds) << row.count << " x " << row.bytes;
    EXPECT_EQ(path_of(paths, slice, BounceRule::kAlways), DataPath::kBounce) << row.count << " x " << row.bytes;
  }
  // Whatever the costs and thresholds say, a slice goes where there is a way.
  paths.rdma.is_available = false;
  for (const BounceRule rule : {BounceRule::kCost, BounceRule::kThresholds}) {
    EXPECT_EQ(path_of(paths, submission_of(1, 1, 0, 1, 4096), rule), DataPath::kBounce);
  }
}

// Thresholds hold back what would be cheaper bounced: p2p is then compared to the descriptors that are left.
TEST(PathChoiceTest, P2pIsComparedToWhatWouldReallyBeTaken) {
  PeerPaths paths;
  paths.p2p.is_available = paths.rdma.is_available = paths.bounce.is_available = paths.bounces_device = true;
  for (const GpuLink link : {GpuLink::kUnknown, GpuLink::kNvlink, GpuLink::kPcie, GpuLink::kSameGpu}) {
    paths.link = link;
    for (const BounceRule rule : {BounceRule::kCost, BounceRule::kThresholds}) {
      for (const std::int32_t count : {1, 17, 1000, 4096}) {
        for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{32768}, std::size_t{1280} << 10,
                                        std::size_t{2} << 20, std::size_t{4} << 20, std::size_t{16} << 20}) {
          EXPECT_EQ(path_of(paths, submission_of(1, 1, 0, count, bytes), rule), DataPath::kP2p)
              << count << " x " << bytes;
        }
      }
    }
  }
}

TEST(PathCostTest, AcrossPcieNoPathIsSaidToBeAsFastAsNvlink) {
  const Submission slice = submission_of(1, 1, 0, 2048, 32768);
  const SliceShape shape = shape_of(slice.groups);
  // 64 MiB at 25 GB/s.
  EXPECT_NEAR(estimate_us(DataPath::kP2p, shape, GpuLink::kPcie), 12 + 2684, 1);
  for (const DataPath path : {DataPath::kP2p, DataPath::kRdma, DataPath::kBounce}) {
    EXPECT_GT(estimate_us(path, shape, GpuLink::kPcie), 2684);
    EXPECT_EQ(estimate_us(path, shape, GpuLink::kUnknown), estimate_us(path, shape, GpuLink::kNvlink));
  }
}

// A kernel that moves narrower words is slower, but no scattered page that p2p can take goes by another path for it.
TEST(PathCostTest, PagesOutOfLineAndSmallPiecesCostMoreOverP2p) {
  const auto shape = [](std::size_t bytes, std::uintptr_t source_off) {
    Fragment fragment;
    fragment.source = {.base = 0x100000 + source_off, .slot_bytes = 64, .slot_stride = bytes, .slot_count = 64};
    fragment.source.slot_bytes = bytes;
    fragment.destination = {.base = 0x900000, .slot_bytes = bytes, .slot_stride = 2 * bytes, .slot_count = 64};
    fragment.bytes = bytes;
    fragment.count = 1;
    auto table = std::make_shared<FragmentTable>();
    EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
    const PlanGroup group{table, {0, 4, 1, 5, 7, 6}};
    SliceShape made = shape_of(std::span(&group, 1));
    made.bytes = std::uint64_t{256} << 20;
    made.runs = 65536;
    return made;
  };
  const SliceShape lined_up = shape(32768, 0);
  EXPECT_FALSE(lined_up.has_narrow_words || lined_up.has_small_pieces);
  const SliceShape narrow = shape(32768, 4);
  EXPECT_TRUE(narrow.has_narrow_words);
  const SliceShape small = shape(64, 0);
  EXPECT_TRUE(small.has_small_pieces && !small.has_narrow_words);
  const auto p2p = [](const SliceShape& one) { return estimate_us(DataPath::kP2p, one); };
  // 256 MiB at 348, 311 and 291 GB/s.
  EXPECT_NEAR(p2p(lined_up), 12 + 771, 1);
  EXPECT_NEAR(p2p(small), 12 + 863, 1);
  EXPECT_NEAR(p2p(narrow), 12 + 922, 1);
  for (const SliceShape& one : {narrow, small}) EXPECT_LT(p2p(one), estimate_us(DataPath::kBounce, one));
}

// What `bench transfer --path bounce` took for 256 MiB on two H200 (bounce-transfer.json), within a quarter.
TEST(PathCostTest, BounceCostsWhatItsSlotsCost) {
  constexpr std::uint64_t kBytes = std::uint64_t{256} << 20;
  const std::pair<std::uint64_t, double> measured[] = {{65536, 3615}, {8192, 1422}, {1024, 1008}};
  for (const auto& [slots, us] : measured) {
    const double estimated = estimate_us(DataPath::kBounce, {.bytes = kBytes, .runs = 65536, .slots = slots});
    EXPECT_NEAR(estimated / us, 1, 0.25) << slots;
  }
}

TEST(PathCostTest, WholeSlotsThatFollowEachOtherAreOneRun) {
  Fragment fragment;
  fragment.source = {.base = 0x100000, .slot_bytes = 64, .slot_stride = 64, .slot_count = 64};
  fragment.destination = {.base = 0x900000, .slot_bytes = 64, .slot_stride = 64, .slot_count = 64};
  fragment.bytes = 64;
  fragment.count = 1;
  auto table = std::make_shared<FragmentTable>();
  ASSERT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
  const PlanGroup group{table, {0, 4, 1, 5, 2, 6, 4, 7, 5, 9}};
  EXPECT_EQ(shape_of(std::span(&group, 1)).runs, 3U);
}

}  // namespace
}  // namespace kvt
