// NixlTransport over the scripted fake: what must hold when NIXL fails, checked call by call.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "test/nixl_fake.h"
#include "transport/nixl_envelope.h"
#include "transport/nixl_transport.h"

namespace kvt::nixl {
namespace {

using namespace std::chrono_literals;

constexpr std::uintptr_t kPeerBase = 0x7000'0000;
constexpr std::size_t kPeerSize = 1 << 20;

std::vector<std::byte> metadata_of(const std::string& name, const std::string& blob) {
  Envelope envelope{.name = name, .regions = {}, .blob = {}};
  EXPECT_TRUE(envelope.regions.add({.base = kPeerBase, .size = kPeerSize, .kind = MemoryKind::kHost, .device = -1}));
  for (const char c : blob) envelope.blob.push_back(static_cast<std::byte>(c));
  std::vector<std::byte> bytes;
  EXPECT_TRUE(encode_envelope(envelope, &bytes).is_ok());
  return bytes;
}

class NixlFault : public testing::Test {
 protected:
  void SetUp() override {
    std::string problem;
    library_ = Library::open(KVT_NIXL_FAKE_SCRIPTED, &problem);
    ASSERT_NE(library_, nullptr) << problem;
    void* handle = ::dlopen(KVT_NIXL_FAKE_SCRIPTED, RTLD_NOW | RTLD_NOLOAD);
    fake_ = reinterpret_cast<test::FakeNixlGetter>(::dlsym(handle, "fake_nixl"))();
    *fake_ = test::FakeNixl{};
    Status error;
    transport_ = make_nixl_transport(
        *library_, {.agent_name = "self", .library_path = "", .package_tree = "", .peer_grace = 20ms}, &error);
    ASSERT_NE(transport_, nullptr) << error.message();
    ASSERT_TRUE(transport_->open().is_ok());
    ASSERT_TRUE(transport_->allocate_region(1 << 20, &region_).is_ok());
    ASSERT_TRUE(transport_->begin_add_peer(1, metadata_of("peer-b", "peer-b")).is_ok());
  }

  BatchResult post(BatchId batch, PeerId peer = 1) {
    const kvt::Run run{.source = region_.base, .destination = kPeerBase, .bytes = 4096};
    return transport_->post(batch, peer, {&run, 1});
  }
  bool called(const std::string& call) const {
    return std::any_of(fake_->calls.begin(), fake_->calls.end(),
                       [&](const std::string& c) { return c.starts_with(call); });
  }
  std::vector<BatchId> drained() {
    std::vector<BatchId> out;
    transport_->take_drained(&out);
    return out;
  }
  std::vector<BatchId> drained_within(std::chrono::milliseconds limit) {
    const TimePoint deadline = std::chrono::steady_clock::now() + limit;
    std::vector<BatchId> out;
    while (out.empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_until(*transport_->next_wakeup(std::chrono::steady_clock::now()));
      transport_->take_drained(&out);
    }
    return out;
  }

  std::unique_ptr<Library> library_;
  test::FakeNixl* fake_ = nullptr;
  std::unique_ptr<Transport> transport_;
  Region region_;
};

TEST_F(NixlFault, NamesTheBackendAndPostsWithoutOptions) {
  EXPECT_TRUE(called("create_backend UCX"));
  EXPECT_TRUE(called("register"));
  EXPECT_FALSE(called("register without backend"));
  EXPECT_EQ(post(1).state, BatchState::kInFlight);
  EXPECT_FALSE(called("create without backend"));
  EXPECT_TRUE(called("post "));
  EXPECT_FALSE(called("post with options"));
}

TEST_F(NixlFault, AFailedPostMayHaveStartedWork) {
  fake_->post_code = -2;
  const BatchResult result = post(1);
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_TRUE(result.may_still_land);
  EXPECT_EQ(result.error.code(), StatusCode::kTransport);
  EXPECT_FALSE(called("release")) << "the request pins what may still run";
  EXPECT_TRUE(drained().empty());
}

TEST_F(NixlFault, AnErrorWhilePollingIsFinalAndQuarantined) {
  fake_->status_codes = {1, -2};
  EXPECT_EQ(post(1).state, BatchState::kInFlight);
  EXPECT_EQ(transport_->poll(1).state, BatchState::kInFlight);
  const BatchResult result = transport_->poll(1);
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_TRUE(result.may_still_land);
  EXPECT_EQ(transport_->poll(1).error.code(), StatusCode::kState) << "a settled batch is gone";
  EXPECT_FALSE(called("release"));
}

TEST_F(NixlFault, RemovingThePeerReleasesThenInvalidatesThenWaitsOutTheGrace) {
  fake_->post_code = -2;
  ASSERT_TRUE(post(1).may_still_land);
  ASSERT_TRUE(post(2).may_still_land);
  fake_->calls.clear();
  transport_->remove_peer(1);
  ASSERT_EQ(fake_->calls.size(), 3u);
  EXPECT_TRUE(fake_->calls[0].starts_with("release"));
  EXPECT_TRUE(fake_->calls[1].starts_with("release"));
  EXPECT_EQ(fake_->calls[2], "invalidate peer-b");
  EXPECT_TRUE(drained().empty());
  EXPECT_EQ(drained_within(2s), (std::vector<BatchId>{1, 2}));
  EXPECT_TRUE(transport_->close());
}

TEST_F(NixlFault, ALostPeerIsTornDownOnlyWhenItsLastBatchHasEnded) {
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  ASSERT_EQ(post(2).state, BatchState::kInFlight);
  fake_->takes_messages = false;
  fake_->status_codes = {-2};
  const BatchResult first = transport_->poll(1);
  EXPECT_EQ(first.error.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(called("release")) << "batch 2 is in flight";
  Status error;
  EXPECT_EQ(transport_->poll_peer(1, &error), PeerState::kFailed);
  EXPECT_EQ(error.code(), StatusCode::kPeerLost);
  const BatchResult refused = post(3);
  EXPECT_EQ(refused.error.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(refused.may_still_land) << "nothing was posted";

  EXPECT_EQ(transport_->poll(2).error.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(called("release"));
  EXPECT_TRUE(called("invalidate peer-b"));
  EXPECT_EQ(drained_within(2s), (std::vector<BatchId>{1, 2}));
}

TEST_F(NixlFault, APeerThatNixlDroppedItselfIsLostToo) {
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  fake_->knows_remote = false;
  fake_->status_codes = {-2};
  EXPECT_EQ(transport_->poll(1).error.code(), StatusCode::kPeerLost);
}

TEST_F(NixlFault, ALostIncarnationNeverComesBackAndANewOneMay) {
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  fake_->takes_messages = false;
  fake_->status_codes = {-2};
  (void)transport_->poll(1);
  EXPECT_EQ(transport_->begin_add_peer(2, metadata_of("peer-b", "peer-b")).code(), StatusCode::kPeerLost);
  transport_->remove_peer(1);
  EXPECT_EQ(transport_->begin_add_peer(3, metadata_of("peer-b", "peer-b")).code(), StatusCode::kPeerLost);
  EXPECT_TRUE(transport_->begin_add_peer(4, metadata_of("peer-b2", "peer-b2")).is_ok());
}

TEST_F(NixlFault, OtherPeersGoOn) {
  ASSERT_TRUE(transport_->begin_add_peer(2, metadata_of("peer-c", "peer-c")).is_ok());
  ASSERT_EQ(post(1, 1).state, BatchState::kInFlight);
  ASSERT_EQ(post(2, 2).state, BatchState::kInFlight);
  fake_->takes_messages = false;
  fake_->status_codes = {-2, 0};
  EXPECT_EQ(transport_->poll(1).error.code(), StatusCode::kPeerLost);
  EXPECT_EQ(transport_->poll(2).state, BatchState::kDone);
  EXPECT_FALSE(called("invalidate peer-c"));
  Status error;
  EXPECT_EQ(transport_->poll_peer(2, &error), PeerState::kReady);
}

TEST_F(NixlFault, AWriteThatCannotBePreparedHasNotStarted) {
  fake_->create_request_code = -2;
  const BatchResult result = post(1);
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_FALSE(result.may_still_land);
  EXPECT_EQ(result.error.code(), StatusCode::kTransport);
  fake_->takes_messages = false;
  EXPECT_EQ(post(2).error.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(called("post"));
}

TEST_F(NixlFault, ClosingWithAWriteInFlightLeavesEverythingAlone) {
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  fake_->calls.clear();
  EXPECT_FALSE(transport_->close());
  EXPECT_FALSE(transport_->close()) << "and stays that way";
  EXPECT_EQ(transport_->next_wakeup(std::chrono::steady_clock::now()), std::nullopt);
  transport_.reset();
  EXPECT_TRUE(fake_->calls.empty()) << fake_->calls.front();
  // Still mapped: a late read or write must find the pages.
  *reinterpret_cast<volatile char*>(region_.base) = 1;
}

TEST_F(NixlFault, ClosingTakesThingsApartInOrder) {
  fake_->status_codes = {0};
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  fake_->calls.clear();
  EXPECT_TRUE(transport_->close());
  ASSERT_EQ(fake_->calls.size(), 4u);
  EXPECT_TRUE(fake_->calls[0].starts_with("release"));
  EXPECT_EQ(fake_->calls[1], "invalidate peer-b");
  EXPECT_EQ(fake_->calls[2], "deregister");
  EXPECT_EQ(fake_->calls[3], "destroy_agent");
  EXPECT_TRUE(transport_->close()) << "idempotent";
}

TEST_F(NixlFault, RefusesRunsOutsideWhatBothSidesRegistered) {
  const kvt::Run outside_here{.source = region_.base + region_.size - 1, .destination = kPeerBase, .bytes = 2};
  const kvt::Run outside_there{.source = region_.base, .destination = kPeerBase + kPeerSize - 1, .bytes = 2};
  const kvt::Run empty{.source = region_.base, .destination = kPeerBase, .bytes = 0};
  for (const kvt::Run& run : {outside_here, outside_there, empty}) {
    const BatchResult result = transport_->post(1, 1, {&run, 1});
    EXPECT_EQ(result.error.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(result.may_still_land);
  }
  EXPECT_TRUE(transport_->peer_owns(1, kPeerBase + kPeerSize - 1, 1));
  EXPECT_FALSE(transport_->peer_owns(1, kPeerBase + kPeerSize - 1, 2));
  EXPECT_FALSE(transport_->peer_owns(2, kPeerBase, 1));
}

TEST_F(NixlFault, RefusesItselfTheSamePeerTwiceAndABlobOfAnotherName) {
  EXPECT_EQ(transport_->begin_add_peer(2, metadata_of("self", "self")).code(), StatusCode::kTransport);
  EXPECT_EQ(transport_->begin_add_peer(2, metadata_of("peer-b", "peer-b")).code(), StatusCode::kState);
  fake_->calls.clear();
  EXPECT_EQ(transport_->begin_add_peer(2, metadata_of("peer-x", "peer-b")).code(), StatusCode::kTransport);
  EXPECT_FALSE(called("invalidate")) << "peer-b is somebody's connection";
  EXPECT_EQ(transport_->begin_add_peer(2, metadata_of("peer-x", "peer-y")).code(), StatusCode::kTransport);
  EXPECT_TRUE(called("invalidate peer-y"));
}

TEST_F(NixlFault, WakesUpForPeersAndAtOnceForBatches) {
  const TimePoint now = std::chrono::steady_clock::now();
  EXPECT_LE(*transport_->next_wakeup(now), now + 1ms);
  ASSERT_EQ(post(1).state, BatchState::kInFlight);
  EXPECT_EQ(transport_->next_wakeup(now), now);
}

}  // namespace
}  // namespace kvt::nixl
