#include "transport/host_transport.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "transport/host_handover.h"
#include "transport/host_metadata.h"
#include "transport/shared_mapping.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

std::unique_ptr<Transport> open_host(std::optional<double> gbps = std::nullopt) {
  Status error;
  std::unique_ptr<Transport> transport = make_host_transport({gbps}, &error);
  EXPECT_TRUE(error.is_ok()) << error.message();
  EXPECT_TRUE(transport->open().is_ok());
  return transport;
}

Region allocate(Transport* transport, std::size_t size) {
  Region region;
  const Status status = transport->allocate_region(size, &region);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return region;
}

std::vector<std::byte> metadata_of(Transport* transport) {
  std::vector<std::byte> bytes;
  EXPECT_TRUE(transport->metadata(&bytes).is_ok());
  return bytes;
}

// One thread drives both sides in turn, so a hand-over in which either waits for the other would never end.
PeerState connect(Transport* client, PeerId peer, Transport* server, Status* error) {
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  while (std::chrono::steady_clock::now() < deadline) {
    client->progress();
    if (server != nullptr) server->progress();
    const PeerState state = client->poll_peer(peer, error);
    if (state != PeerState::kConnecting) return state;
  }
  return PeerState::kConnecting;
}

TEST(HostTransport, CopiesIntoThePeersMemoryAndNowhereElse) {
  const auto writer = open_host();
  const auto target = open_host();
  const Region from = allocate(writer.get(), 1 << 16);
  (void)allocate(target.get(), 4096);
  const Region to = allocate(target.get(), 1 << 16);
  for (std::size_t i = 0; i < from.size; ++i) at(from.base)[i] = static_cast<std::byte>(i * 31 + 1);
  ASSERT_TRUE(writer->begin_add_peer(1, metadata_of(target.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(writer.get(), 1, target.get(), &error), PeerState::kReady) << error.message();
  EXPECT_EQ(writer->peer_regions(1).size(), 2U);
  EXPECT_TRUE(writer->peer_owns(1, to.base, to.size));
  EXPECT_FALSE(writer->peer_owns(1, to.base + 1, to.size));

  const std::vector<kvt::Run> runs{{from.base + 100, to.base + 8192, 5000}, {from.base, to.base, 64}};
  EXPECT_EQ(writer->post(1, 1, runs).state, BatchState::kDone);
  for (std::size_t i = 0; i < to.size; ++i) {
    std::byte expected{};
    if (i < 64) expected = at(from.base)[i];
    if (i >= 8192 && i < 13192) expected = at(from.base)[i - 8192 + 100];
    ASSERT_EQ(at(to.base)[i], expected) << "byte " << i;
  }
  EXPECT_TRUE(writer->close());
  EXPECT_TRUE(target->close());
}

TEST(HostTransport, TwoThatAddEachOtherAtTheSameTimeBothSucceed) {
  const auto a = open_host();
  const auto b = open_host();
  (void)allocate(a.get(), 4096);
  (void)allocate(b.get(), 4096);
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(b.get())).is_ok());
  ASSERT_TRUE(b->begin_add_peer(1, metadata_of(a.get())).is_ok());
  Status error;
  EXPECT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady) << error.message();
  EXPECT_EQ(connect(b.get(), 1, a.get(), &error), PeerState::kReady) << error.message();
}

TEST(HostTransport, ManyRegionsTakeSeveralMessages) {
  const auto a = open_host();
  const auto b = open_host();
  std::vector<Region> regions;
  for (std::size_t i = 0; i < 2 * kDescriptorsPerGrant + 3; ++i)
    regions.push_back(allocate(b.get(), 4096 * (1 + i % 3)));
  const Region from = allocate(a.get(), 4096);
  ASSERT_TRUE(a->begin_add_peer(4, metadata_of(b.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 4, b.get(), &error), PeerState::kReady) << error.message();
  for (std::size_t i = 0; i < regions.size(); ++i) {
    *at(from.base) = static_cast<std::byte>(i);
    const std::vector<kvt::Run> runs{{from.base, regions[i].base + regions[i].size - 1, 1}};
    ASSERT_EQ(a->post(i, 4, runs).state, BatchState::kDone);
  }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    EXPECT_EQ(at(regions[i].base)[regions[i].size - 1], static_cast<std::byte>(i));
  }
}

TEST(HostTransport, AnAgentCanBeItsOwnPeer) {
  const auto a = open_host();
  const Region region = allocate(a.get(), 8192);
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(a.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, nullptr, &error), PeerState::kReady) << error.message();
  *at(region.base) = std::byte{77};
  const std::vector<kvt::Run> runs{{region.base, region.base + 4096, 1}};
  EXPECT_EQ(a->post(1, 1, runs).state, BatchState::kDone);
  EXPECT_EQ(*at(region.base + 4096), std::byte{77});
}

TEST(HostTransport, RunsOutsideRegisteredMemoryAreRefused) {
  const auto a = open_host();
  const auto b = open_host();
  const Region from = allocate(a.get(), 4096);
  const Region to = allocate(b.get(), 4096);
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(b.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady);
  for (const kvt::Run& bad : {kvt::Run{from.base, to.base + 4090, 7}, kvt::Run{from.base + 4090, to.base, 7},
                              kvt::Run{from.base, 16, 1}, kvt::Run{from.base, to.base, static_cast<std::size_t>(-1)}}) {
    const BatchResult result = a->post(1, 1, std::vector<kvt::Run>{bad});
    EXPECT_EQ(result.state, BatchState::kFailed);
    EXPECT_FALSE(result.may_still_land);
    EXPECT_EQ(result.error.code(), StatusCode::kInvalidArgument);
  }
}

TEST(HostTransport, AWrongTokenGetsNoMemory) {
  const auto a = open_host();
  const auto b = open_host();
  (void)allocate(b.get(), 4096);
  HostMetadata metadata;
  ASSERT_TRUE(decode_host_metadata(metadata_of(b.get()), &metadata).is_ok());
  metadata.token[0] ^= std::byte{1};
  ASSERT_TRUE(a->begin_add_peer(1, encode_host_metadata(metadata)).is_ok());
  Status error;
  EXPECT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kFailed);
  EXPECT_NE(error.message().find("refused"), std::string::npos) << error.message();
}

TEST(HostTransport, MetadataThatClaimsMoreMemoryThanThereIsFails) {
  const auto a = open_host();
  const auto b = open_host();
  (void)allocate(b.get(), 4096);
  HostMetadata metadata;
  ASSERT_TRUE(decode_host_metadata(metadata_of(b.get()), &metadata).is_ok());
  metadata.regions[0].size = 1 << 20;
  ASSERT_TRUE(a->begin_add_peer(1, encode_host_metadata(metadata)).is_ok());
  metadata.regions.push_back({0x100, 4096});
  ASSERT_TRUE(a->begin_add_peer(2, encode_host_metadata(metadata)).is_ok());
  Status error;
  EXPECT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kFailed);
  EXPECT_NE(error.message().find("less memory"), std::string::npos) << error.message();
  EXPECT_EQ(connect(a.get(), 2, b.get(), &error), PeerState::kFailed);
}

TEST(HostTransport, AnotherMachineIsNamedAsSuch) {
  const auto a = open_host();
  HostMetadata metadata;
  ASSERT_TRUE(decode_host_metadata(metadata_of(a.get()), &metadata).is_ok());
  metadata.boot_id[5] ^= std::byte{1};
  const Status status = a->begin_add_peer(1, encode_host_metadata(metadata));
  EXPECT_EQ(status.code(), StatusCode::kCapability);
  EXPECT_NE(status.message().find("another machine"), std::string::npos);
}

TEST(HostTransport, APeerThatNeverAnswersFailsAfterTwoSeconds) {
  const auto a = open_host();
  const auto silent = open_host();
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(silent.get())).is_ok());
  const auto begin = std::chrono::steady_clock::now();
  Status error;
  EXPECT_EQ(a->poll_peer(1, &error), PeerState::kConnecting);
  const auto wakeup = a->next_wakeup(begin);
  ASSERT_TRUE(wakeup.has_value());
  EXPECT_LE(*wakeup - begin, 2s);
  std::this_thread::sleep_until(*wakeup + 1ms);
  EXPECT_EQ(a->poll_peer(1, &error), PeerState::kFailed);
  EXPECT_NE(error.message().find("within 2 seconds"), std::string::npos) << error.message();
}

TEST(HostTransport, AClosedPeerIsLost) {
  const auto a = open_host();
  auto b = open_host();
  const Region from = allocate(a.get(), 4096);
  const Region to = allocate(b.get(), 4096);
  const std::vector<std::byte> metadata = metadata_of(b.get());
  ASSERT_TRUE(a->begin_add_peer(1, metadata).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady);
  EXPECT_TRUE(b->close());
  const BatchResult result = a->post(1, 1, std::vector<kvt::Run>{{from.base, to.base, 16}});
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_EQ(result.error.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(result.may_still_land);
  ASSERT_TRUE(a->begin_add_peer(2, metadata).is_ok());
  EXPECT_EQ(a->poll_peer(2, &error), PeerState::kFailed);
  a->remove_peer(1);
  a->remove_peer(1);
}

TEST(HostTransport, AKilledProcessIsLost) {
  int to_parent[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Status error;
    const auto b = make_host_transport({}, &error);
    Region region;
    std::vector<std::byte> bytes;
    if (!b->open().is_ok() || !b->allocate_region(4096, &region).is_ok() || !b->metadata(&bytes).is_ok()) ::_exit(1);
    if (::write(to_parent[1], bytes.data(), bytes.size()) < 0) ::_exit(1);
    while (true) b->progress();
  }
  const auto a = open_host();
  const Region from = allocate(a.get(), 4096);
  std::vector<std::byte> metadata(4096);
  const ssize_t got = ::read(to_parent[0], metadata.data(), metadata.size());
  ASSERT_GT(got, 0);
  metadata.resize(static_cast<std::size_t>(got));
  ASSERT_TRUE(a->begin_add_peer(1, metadata).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, nullptr, &error), PeerState::kReady) << error.message();
  const std::vector<kvt::Run> runs{{from.base, a->peer_regions(1)[0].base, 4096}};
  EXPECT_EQ(a->post(1, 1, runs).state, BatchState::kDone);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const BatchResult result = a->post(2, 1, runs);
  EXPECT_EQ(result.state, BatchState::kFailed);
  EXPECT_EQ(result.error.code(), StatusCode::kPeerLost);
  EXPECT_NE(result.error.message().find("pid " + std::to_string(child)), std::string::npos);
  ::close(to_parent[0]);
  ::close(to_parent[1]);
}

TEST(HostTransport, ALinkKeepsBatchesInFlightUntilTheirBytesHaveLeft) {
  const auto a = open_host(1.0);  // 8 ns a byte
  const auto b = open_host();
  const Region from = allocate(a.get(), 1 << 20);
  const Region to = allocate(b.get(), 1 << 20);
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(b.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<kvt::Run> runs{{from.base, to.base, 1 << 20}};
  ASSERT_EQ(a->post(1, 1, runs).state, BatchState::kInFlight);
  ASSERT_EQ(a->post(2, 1, runs).state, BatchState::kInFlight);
  const auto first = a->next_wakeup(begin);
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(*first - begin, std::chrono::nanoseconds(8 << 20));
  EXPECT_EQ(a->poll(2).state, BatchState::kInFlight);
  std::this_thread::sleep_until(*first);
  EXPECT_EQ(a->poll(1).state, BatchState::kDone);
  const auto second = a->next_wakeup(begin);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second - *first, std::chrono::nanoseconds(8 << 20));
}

TEST(HostTransport, ALateThreadDoesNotSlowTheModelledLink) {
  const auto a = open_host(1.0);
  const auto b = open_host();
  const Region from = allocate(a.get(), 1 << 20);
  const Region to = allocate(b.get(), 1 << 20);
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(b.get())).is_ok());
  Status error;
  ASSERT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady);
  constexpr auto kBatch = std::chrono::nanoseconds(8 << 20);
  const std::vector<kvt::Run> runs{{from.base, to.base, 1 << 20}};
  const auto now = [] { return std::chrono::steady_clock::now(); };
  ASSERT_EQ(a->post(1, 1, runs).state, BatchState::kInFlight);
  const TimePoint first = *a->next_wakeup(now());
  std::this_thread::sleep_until(first + 3 * kBatch);

  // What waited for room goes on where the link was, and has left as well by now.
  ASSERT_EQ(a->poll(1).state, BatchState::kDone);
  ASSERT_EQ(a->post(2, 1, runs).state, BatchState::kInFlight);
  ASSERT_EQ(a->poll(2).state, BatchState::kDone);
  ASSERT_EQ(a->post(3, 1, runs).state, BatchState::kInFlight);
  EXPECT_EQ(*a->next_wakeup(now()), first + 2 * kBatch);

  // After a sleep nothing was waiting: idle time is lost.
  std::this_thread::sleep_until(first + 5 * kBatch);
  ASSERT_EQ(a->poll(3).state, BatchState::kDone);
  (void)a->next_wakeup(now());
  const TimePoint before = now();
  ASSERT_EQ(a->post(4, 1, runs).state, BatchState::kInFlight);
  EXPECT_GE(*a->next_wakeup(now()), before + kBatch);
}

TEST(HostTransport, AWaitingConnectionWakesThePoller) {
  const auto a = open_host();
  const auto b = open_host();
  ASSERT_GE(b->wait_fd(), 0);
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(b->next_wakeup(now), std::nullopt) << "an idle agent needs no time";
  ASSERT_TRUE(a->begin_add_peer(1, metadata_of(b.get())).is_ok());
  b->progress();
  Status error;
  EXPECT_EQ(connect(a.get(), 1, b.get(), &error), PeerState::kReady);
  EXPECT_EQ(b->next_wakeup(now), std::nullopt);
}

TEST(HostTransport, WrongOptionsAreRefused) {
  Status error;
  EXPECT_EQ(make_host_transport({.link_gbps = -1.0}, &error), nullptr);
  EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
}

TEST(SharedMapping, IsZeroedSealedAndBounded) {
  SharedMapping mapping;
  ASSERT_TRUE(SharedMapping::create((std::size_t{4} << 20) + 5, &mapping).is_ok());
  for (std::size_t i = 0; i < mapping.size(); ++i) ASSERT_EQ(at(mapping.base())[i], std::byte{0});
  EXPECT_NE(::ftruncate(mapping.fd(), 4096), 0) << "shrinking would make the peer fault";
  SharedMapping none;
  EXPECT_EQ(SharedMapping::create(0, &none).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMapping::create(std::size_t{1} << 46, &none).code(), StatusCode::kResource);
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(SharedMapping::adopt(std::move(unsealed), 4096, &none).code(), StatusCode::kTransport);
  EXPECT_EQ(none.base(), 0U);
}

}  // namespace
}  // namespace kvt
