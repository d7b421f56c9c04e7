// One call that the driver refuses, and the device is well again: what was queued of a slice and its peer must not be
// kept for it. And a device that is lost: what is kept then. Needs no GPU.
#include <ctime>

#include "fake_device_base.h"
#include "fake_device_fixture.h"

namespace kvt::test {
namespace {

double processor_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
}

class Refused : public FakeDeviceTest {
 protected:
  static constexpr std::size_t kRun = std::size_t{8} << 20;
  static constexpr std::size_t kLong = std::size_t{160} << 20;  // more than the copy engines are given ahead

  void connect(std::size_t bytes) {
    KVT_ASSERT_OK(writer_->opening());
    KVT_ASSERT_OK(receiver_->opening());
    KVT_ASSERT_OK(writer_->allocate(bytes, &source_));
    KVT_ASSERT_OK(receiver_->allocate(bytes, &destination_));
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata()));
    fill(source_, 0x33);
    fill(destination_, 0x77);
  }
  // In one run: copy engines.
  Submission run(SubmissionId id, std::size_t bytes) const {
    const std::size_t slot = std::size_t{1} << 20;
    const auto count = static_cast<std::int32_t>(bytes / slot);
    Fragment fragment;
    fragment.source = {source_.base, slot, slot, count};
    fragment.destination = {destination_.base, slot, slot, count};
    fragment.bytes = slot;
    fragment.count = 1;
    auto table = std::make_shared<FragmentTable>();
    EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
    PlanGroup group{table, {}};
    for (std::int32_t i = 0; i < count; ++i) group.slot_pairs.insert(group.slot_pairs.end(), {i, i});
    return {.id = id, .peer = 1, .flow = id, .groups = {group}, .after = nullptr};
  }
  Submission pages(SubmissionId id, std::shared_ptr<const ReadyEvent> after = nullptr) const {
    return {.id = id,
            .peer = 1,
            .flow = id,
            .groups = scattered({source_.base, kPool}, {destination_.base, kPool}).groups,
            .after = std::move(after)};
  }
  // More groups than one launch takes.
  Submission many_groups(SubmissionId id) const {
    Submission out = pages(id);
    const std::vector<std::int32_t> pairs = out.groups[0].slot_pairs;
    const auto table = out.groups[0].table;
    out.groups.clear();
    for (std::size_t i = 0; i < pairs.size(); i += 2) out.groups.push_back({table, {pairs[i], pairs[i + 1]}});
    return out;
  }
  // The driver refuses `call` with out of memory until the slice has ended.
  Notice refused(const std::string& call, Submission slice) {
    const SubmissionId id = slice.id;
    FakeCuda::order({"fail " + call + " 2"});
    writer_->submit(std::move(slice));
    Notice notice = writer_->settled(id);
    FakeCuda::order({});
    EXPECT_EQ(notice.outcome, Outcome::kFailed) << call;
    EXPECT_NE(notice.error.message().find(call), std::string::npos) << notice.error.message();
    return notice;
  }
  void expect_sent(Submission slice) {
    const SubmissionId id = slice.id;
    writer_->submit(std::move(slice));
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
  }

  std::unique_ptr<TestAgent> writer_ = std::make_unique<TestAgent>("writer", p2p_on(0));
  std::unique_ptr<TestAgent> receiver_ = std::make_unique<TestAgent>("receiver", p2p_on(0));
  Region source_, destination_;
};

TEST_F(Refused, LongRunsGoOnAfterACallThatQueuedNothing) {
  connect(kRun);
  SubmissionId id = 0;
  for (const char* call : {"cuEventCreate", "cuMemcpyDtoDAsync"}) {
    const Notice notice = refused(call, run(++id, kRun));
    EXPECT_TRUE(notice.drained) << call;
    expect_sent(run(++id, kRun));
  }
  EXPECT_TRUE(is_filled(destination_, 0x33));
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, ALongRunThatIsRefusedHalfwayEndsWithWhatWasQueued) {
  connect(kLong);
  FakeCuda::order({"hide"});
  const std::uint64_t before = FakeCuda::calls("cuMemcpyDtoDAsync");
  writer_->submit(run(1, kLong));
  await("what is queued ahead", [&] { return FakeCuda::calls("cuMemcpyDtoDAsync") >= before + 2; });
  const Notice notice = [&] {
    FakeCuda::order({"fail cuMemcpyDtoDAsync 2"});
    return writer_->settled(1);
  }();
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  FakeCuda::order({});
  expect_sent(run(2, kLong));
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, APieceWhoseEventCannotBeRecordedIsDoneOnceItsStreamIs) {
  connect(kRun);
  FakeCuda::order({"fail cuEventRecord 2"});
  expect_sent(run(1, kRun));
  EXPECT_TRUE(is_filled(destination_, 0x33));
  FakeCuda::order({});
  expect_sent(run(2, kRun));
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, PagesAreFreeAfterACallThatQueuedNoKernel) {
  connect(kPool);
  SubmissionId id = 0;
  // Events are created for the first slice only.
  for (const std::string call : {"cuEventCreate", "cuMemcpyHtoDAsync", "cuLaunchKernel"}) {
    const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
    const Notice notice = refused(call, pages(++id));
    EXPECT_TRUE(notice.drained) << call;
    EXPECT_EQ(notice.bytes, 0U);
    EXPECT_EQ(FakeCuda::calls("cuLaunchKernel") - before, call == "cuLaunchKernel" ? 1U : 0U) << call;
    EXPECT_TRUE(is_filled(destination_, 0x77)) << call;
  }
  expect_sent(pages(++id));
  EXPECT_TRUE(is_filled(destination_, 0x33));
  EXPECT_TRUE(writer_->close().drained);
}

// Behind another one its slots come on a stream of their own, which takes an event more.
TEST_F(Refused, ASliceBehindAForwardLosesNothingEither) {
  connect(kPool);
  SubmissionId id = 0;
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel"}) {
    FakeCuda::order({"hold"});
    const auto event = forward_event();
    const SubmissionId ahead = ++id;
    const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
    writer_->submit(pages(ahead, event));
    await("the slice ahead", [&] { return FakeCuda::calls("cuLaunchKernel") > before; });
    FakeCuda::order({"hold", std::string("fail ") + call + " 2"});
    writer_->submit(pages(++id, event));
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kFailed) << call;
    EXPECT_TRUE(notice.drained) << call;
    FakeCuda::order({});
    EXPECT_EQ(writer_->settled(ahead).outcome, Outcome::kTransferred) << call;
  }
  expect_sent(pages(++id, forward_event()));
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, ASliceOfTooManyTilesQueuesNothing) {
  connect(kPool);
  // 4096 pieces of one byte, 2^20 pairs of slots.
  std::vector<Fragment> fragments;
  for (std::size_t i = 0; i < 4096; ++i) {
    Fragment fragment;
    fragment.source = {source_.base, 8192, 8192, 64};
    fragment.destination = {destination_.base, 8192, 8192, 64};
    fragment.bytes = 1;
    fragment.count = 1;
    fragment.source_offset = fragment.destination_offset = 2 * i;
    fragments.push_back(fragment);
  }
  auto table = std::make_shared<FragmentTable>();
  KVT_ASSERT_OK(FragmentTable::create(fragments, table.get()));
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit({.id = 1,
                   .peer = 1,
                   .flow = 1,
                   .groups = {{table, std::vector<std::int32_t>(std::size_t{2} << 20, 0)}},
                   .after = nullptr});
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  EXPECT_EQ(FakeCuda::calls("cuLaunchKernel"), before);
  EXPECT_TRUE(writer_->close().drained);
}

// Of two launches the second is refused, or the event behind them.
TEST_F(Refused, ASliceThatIsQueuedInPartEndsOnceThatPartHas) {
  connect(kPool);
  for (const SubmissionId id : {1, 2, 3}) {
    std::fill_n(reinterpret_cast<unsigned char*>(destination_.base), kPool, 0x77);
    FakeCuda::order({"refuse cuLaunchKernel " + std::to_string(FakeCuda::calls("cuLaunchKernel") + id)});
    writer_->submit(many_groups(id));
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kFailed);
    EXPECT_EQ(notice.error.code(), StatusCode::kResource) << notice.error.message();
    EXPECT_TRUE(notice.drained);
    FakeCuda::order({});
    expect_sent(many_groups(id + 10));
    EXPECT_TRUE(is_filled(destination_, 0x33));
  }
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, AKernelWhoseEventCannotBeRecordedIsDoneOnceItsStreamIs) {
  connect(kPool);
  expect_sent(pages(1));
  fill(destination_, 0x77);
  // The first record is that of the upload, the second the one behind the kernel.
  FakeCuda::order({"refuse cuEventRecord " + std::to_string(FakeCuda::calls("cuEventRecord") + 2)});
  expect_sent(pages(2));
  EXPECT_TRUE(is_filled(destination_, 0x33));
  FakeCuda::order({});
  EXPECT_TRUE(writer_->close().drained);
}

// Whether work has ended is asked again where the driver would not say: pages are not lost to one refused call.
TEST_F(Refused, AQueryThatIsRefusedIsAskedAgain) {
  connect(kRun);
  const auto refuse_next = [] {
    FakeCuda::order({"refuse cuEventQuery " + std::to_string(FakeCuda::calls("cuEventQuery") + 1)});
  };
  refuse_next();
  expect_sent(pages(1));
  refuse_next();
  expect_sent(run(2, kRun));
  EXPECT_TRUE(is_filled(destination_, 0x33));
  refuse_next();
  expect_sent(pages(3, forward_event()));
  FakeCuda::order({});
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(Refused, QueriesThatAreRefusedForTooLongLeaveTheSliceUndrained) {
  connect(kPool);
  FakeCuda::order({"fail cuEventQuery 2"});
  for (const SubmissionId id : {1, 2, 3, 4}) writer_->submit(pages(id));
  const TimePoint first = writer_->settled(1).finished_at;
  for (const SubmissionId id : {2, 3, 4}) {
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.outcome, Outcome::kFailed);
    EXPECT_FALSE(notice.drained);
    EXPECT_NE(notice.error.message().find("cuEventQuery"), std::string::npos) << notice.error.message();
    // What was refused of one is not waited for again.
    EXPECT_LT(notice.finished_at - first, RefusedQueries::kLimit);
  }
  FakeCuda::order({});
  EXPECT_FALSE(writer_->close(std::chrono::milliseconds(200)).drained);
}

TEST(RefusedQueries, AFewRefusalsFarApartAreNoLoss) {
  RefusedQueries refused;
  const Status error(StatusCode::kResource, "out of memory");
  const Status lost(StatusCode::kDeviceLost, "lost");
  for (unsigned i = 1; i < RefusedQueries::kAtLeast; ++i) {
    EXPECT_EQ(refused.judge(EventProgress::kFailed, error), EventProgress::kPending);
  }
  EXPECT_EQ(refused.judge(EventProgress::kReached, error), EventProgress::kReached);
  EXPECT_EQ(refused.judge(EventProgress::kFailed, error), EventProgress::kPending);
  EXPECT_EQ(refused.judge(EventProgress::kFailed, lost), EventProgress::kFailed);
}

TEST_F(Refused, ALostDeviceIsCalledThatBehindAForwardToo) {
  connect(kPool);
  FakeCuda::order({"hold"});
  const auto forward = forward_event();
  FakeCuda::order({"hold", "lost"});
  for (const bool is_behind : {true, false}) {
    const SubmissionId id = is_behind ? 1 : 2;
    writer_->submit(pages(id, is_behind ? forward : nullptr));
    const Notice notice = writer_->settled(id);
    EXPECT_EQ(notice.error.code(), StatusCode::kDeviceLost) << notice.error.message();
  }
  // Of an access over NVLink that went wrong, of a kernel that left tensor memory, of a GPU that is off the bus.
  for (const cuda::Result code : {cuda::kErrorContained, cuda::kErrorTensorMemoryLeak, cuda::kErrorUnknown}) {
    EXPECT_EQ(api().check(code, "cuEventQuery").code(), StatusCode::kDeviceLost) << code;
  }
  (void)writer_->close(std::chrono::milliseconds(200));
  FakeCuda::order({});
}

TEST_F(Refused, AGivenUpPeerThatEndsDoesNotKeepTheThreadAwake) {
  connect(kPool);
  FakeCuda::order({"hold"});
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  writer_->submit(pages(1, forward_event()));
  await_launches(before, 1);
  FakeCuda::order({"hold", "lost"});
  const Notice notice = writer_->settled(1);
  EXPECT_FALSE(notice.drained);
  FakeCuda::order({});
  writer_->remove_peer(1);
  receiver_->close();
  receiver_.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double spent = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  // A thread that spins spends as much of it as the machine gives.
  EXPECT_LT(processor_seconds() - spent, 0.02);
  EXPECT_FALSE(writer_->close(std::chrono::milliseconds(100)).drained);
}

class RefusedBounce : public FakeDeviceTest {
 protected:
  static constexpr Ticket kTicket = 77;

  void SetUp() override {
    FakeDeviceTest::SetUp();
    KVT_ASSERT_OK(writer_->allocate(kPool, &source_));
    KVT_ASSERT_OK(receiver_->allocate(kPool, &destination_));
    const std::vector<std::byte> ours = writer_->metadata();
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata()));
    KVT_ASSERT_OK(receiver_->add_peer(1, ours));
    plan_ = scattered(source_, destination_);
    InboundGroup inbound{.key = 0, .table = plan_.groups[0].table, .slots = {}};
    const std::vector<std::int32_t>& pairs = plan_.groups[0].slot_pairs;
    for (std::size_t i = 1; i < pairs.size(); i += 2) inbound.slots.push_back(pairs[i]);
    KVT_ASSERT_OK(receiver_->expect_inbound(1, kTicket, {inbound}));
    fill(source_, 0x33);
    fill(destination_, 0x77);
  }
  Submission slice(SubmissionId id) const {
    return {.id = id, .peer = 1, .flow = id, .groups = plan_.groups, .after = nullptr, .ticket = kTicket};
  }
  // Its gathers are queued, and their ends are not seen.
  void submit_held(SubmissionId id) {
    FakeCuda::order({"hide"});
    const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
    writer_->submit(slice(id));
    await_launches(before, 2);
  }

  std::unique_ptr<TestAgent> writer_ = std::make_unique<TestAgent>("writer", bounced());
  std::unique_ptr<TestAgent> receiver_ = std::make_unique<TestAgent>("receiver", bounced());
  Region source_, destination_;
  PlacedPlan plan_;
};

TEST_F(RefusedBounce, ARefusedGatherGivesItsStagingBack) {
  SubmissionId id = 0;
  for (const char* call :
       {"cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernel", "cuMemcpyHtoDAsync", "cuEventCreate"}) {
    // The first slice of all uses an event; later ones have it from there.
    FakeCuda::order({std::string("fail ") + call + " 2"});
    writer_->submit(slice(++id));
    const Notice notice = writer_->settled(id);
    FakeCuda::order({});
    if (std::string(call) != "cuLaunchKernel") continue;
    EXPECT_EQ(notice.outcome, Outcome::kFailed) << call;
    EXPECT_TRUE(notice.drained) << call;
  }
  writer_->submit(slice(++id));
  const Notice notice = writer_->settled(id);
  EXPECT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
  EXPECT_TRUE(is_filled(destination_, 0x33));
  EXPECT_TRUE(receiver_->end_inbound(1, kTicket));
  EXPECT_TRUE(writer_->close().drained);
  EXPECT_TRUE(receiver_->close().drained);
}

TEST_F(RefusedBounce, ARefusedScatterEndsItsReceive) {
  submit_held(1);
  FakeCuda::order({"fail cuLaunchKernel 2"});
  const Notice notice = writer_->settled(1);
  EXPECT_EQ(notice.outcome, Outcome::kFailed);
  EXPECT_TRUE(notice.drained);
  FakeCuda::order({});
  EXPECT_TRUE(receiver_->end_inbound(1, kTicket));
  EXPECT_TRUE(receiver_->close().drained);
  EXPECT_TRUE(writer_->close().drained);
}

TEST_F(RefusedBounce, AJobWhoseEventCannotBeRecordedIsDoneOnceItsStreamIs) {
  FakeCuda::order({"fail cuEventRecord 2"});
  writer_->submit(slice(1));
  const Notice refused = writer_->settled(1);  // the table's upload
  EXPECT_TRUE(refused.drained);
  FakeCuda::order({});
  writer_->submit(slice(2));
  ASSERT_EQ(writer_->settled(2).outcome, Outcome::kTransferred);
  FakeCuda::order({"fail cuEventRecord 2"});
  writer_->submit(slice(3));
  const Notice notice = writer_->settled(3);
  EXPECT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
  FakeCuda::order({});
  EXPECT_TRUE(writer_->close().drained);
  EXPECT_TRUE(receiver_->close().drained);
}

TEST_F(RefusedBounce, ALostGatherIsNotDrained) {
  submit_held(1);
  FakeCuda::order({"hold", "lost"});
  EXPECT_EQ(writer_->settled(1).outcome, Outcome::kFailed);
  EXPECT_FALSE(writer_->close(std::chrono::milliseconds(200)).drained);
  FakeCuda::order({});
}

TEST_F(RefusedBounce, ALostScatterIsNotDrained) {
  submit_held(1);
  // The first scatter's end is not seen any more.
  const std::uint64_t before = FakeCuda::calls("cuLaunchKernel");
  FakeCuda::order({"hide-from " + std::to_string(before + 1)});
  await_launches(before, 1);
  FakeCuda::order({"lost"});
  EXPECT_FALSE(receiver_->end_inbound(1, kTicket, std::chrono::milliseconds(200)));
  EXPECT_FALSE(receiver_->close(std::chrono::milliseconds(200)).drained);
  (void)writer_->close(std::chrono::milliseconds(200));
  FakeCuda::order({});
}

}  // namespace
}  // namespace kvt::test
