// The link over sockets and the head of a bounce agent's metadata, against bad and hostile input.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "core/bounce_frame.h"
#include "test/fake_transport.h"
#include "transport/bounce_metadata.h"
#include "transport/bounce_near_link.h"
#include "transport/bounce_socket_link.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> frame_of(std::uint8_t value, std::size_t size = 24) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

// Drives both until `done`.
template <typename Done>
bool drive(BounceSocketLink* a, BounceSocketLink* b, std::vector<Transport::Message>* at_a,
           std::vector<Transport::Message>* at_b, std::vector<PeerId>* lost_a, std::vector<PeerId>* lost_b, Done done) {
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (!done() && std::chrono::steady_clock::now() < until) {
    a->progress(at_a, lost_a);
    if (b != nullptr) b->progress(at_b, lost_b);
  }
  return done();
}

TEST(BounceSocketLink, FramesArriveInOrderWhicheverSideAddsTheOtherFirst) {
  BounceSocketLink a;
  BounceSocketLink b;
  ASSERT_TRUE(a.open().is_ok());
  ASSERT_TRUE(b.open().is_ok());
  std::vector<Transport::Message> at_a;
  std::vector<Transport::Message> at_b;
  std::vector<PeerId> lost_a;
  std::vector<PeerId> lost_b;
  ASSERT_TRUE(a.add_peer(3, b.address()).is_ok());
  // More than a socket takes at a time, before the other side knows who speaks.
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_TRUE(a.send(3, frame_of(static_cast<std::uint8_t>(i), 4096)));
  for (int i = 0; i < 100; ++i) b.progress(&at_b, &lost_b);
  EXPECT_TRUE(at_b.empty()) << "frames of somebody who was not added";
  ASSERT_TRUE(b.add_peer(8, a.address()).is_ok());
  ASSERT_TRUE(b.send(8, frame_of(99)));
  ASSERT_TRUE(drive(&a, &b, &at_a, &at_b, &lost_a, &lost_b, [&] { return at_b.size() == 1000 && at_a.size() == 1; }));
  for (std::size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(at_b[i].peer, 8U);
    ASSERT_EQ(at_b[i].bytes, frame_of(static_cast<std::uint8_t>(i), 4096));
  }
  EXPECT_EQ(at_a[0].peer, 3U);
  EXPECT_TRUE(lost_a.empty() && lost_b.empty());
}

TEST(BounceSocketLink, AClosedPeerIsLostOnce) {
  BounceSocketLink a;
  auto b = std::make_unique<BounceSocketLink>();
  ASSERT_TRUE(a.open().is_ok());
  ASSERT_TRUE(b->open().is_ok());
  std::vector<Transport::Message> frames;
  std::vector<PeerId> lost;
  std::vector<PeerId> lost_b;
  ASSERT_TRUE(a.add_peer(1, b->address()).is_ok());
  ASSERT_TRUE(b->add_peer(1, a.address()).is_ok());
  ASSERT_TRUE(a.send(1, frame_of(1)));
  std::vector<Transport::Message> at_b;
  ASSERT_TRUE(drive(&a, b.get(), &frames, &at_b, &lost, &lost_b, [&] { return at_b.size() == 1; }));
  b.reset();
  ASSERT_TRUE(drive(&a, nullptr, &frames, nullptr, &lost, nullptr, [&] { return !lost.empty(); }));
  for (int i = 0; i < 10; ++i) a.progress(&frames, &lost);
  EXPECT_EQ(lost, std::vector<PeerId>{1});
  EXPECT_FALSE(a.send(1, frame_of(2)));
}

TEST(BounceSocketLink, APeerThatNeverReadsIsGivenUp) {
  BounceSocketLink a;
  BounceSocketLink b;
  ASSERT_TRUE(a.open().is_ok());
  ASSERT_TRUE(b.open().is_ok());
  ASSERT_TRUE(a.add_peer(1, b.address()).is_ok());
  std::size_t taken = 0;
  while (a.send(1, frame_of(1, 4096)) && taken < 100000) ++taken;
  EXPECT_LT(taken, 100000U);
  EXPECT_GE(taken, BounceSocketLink::kMaxQueued);
  std::vector<Transport::Message> frames;
  std::vector<PeerId> lost;
  a.progress(&frames, &lost);
  EXPECT_EQ(lost, std::vector<PeerId>{1});
}

TEST(BounceSocketLink, WhoKnowsNoTokenOrClaimsAnothersNameIsNotHeard) {
  BounceSocketLink a;
  BounceSocketLink b;
  BounceSocketLink thief;
  for (BounceSocketLink* link : {&a, &b, &thief}) ASSERT_TRUE(link->open().is_ok());
  std::vector<Transport::Message> frames;
  std::vector<Transport::Message> none;
  std::vector<PeerId> lost;
  std::vector<PeerId> lost_thief;
  // A wrong token of the server: the connection is closed.
  std::vector<std::byte> address = a.address();
  address[0] ^= std::byte{1};
  ASSERT_TRUE(thief.add_peer(1, address).is_ok());
  ASSERT_TRUE(drive(&a, &thief, &frames, &none, &lost, &lost_thief, [&] { return !lost_thief.empty(); }));
  // The right one, but not a peer that was added: kept, and never heard.
  ASSERT_TRUE(a.add_peer(7, b.address()).is_ok());
  ASSERT_TRUE(thief.add_peer(2, a.address()).is_ok());
  ASSERT_TRUE(thief.send(2, frame_of(66)));
  for (int i = 0; i < 200; ++i) {
    a.progress(&frames, &lost);
    thief.progress(&none, &lost_thief);
  }
  EXPECT_TRUE(frames.empty());
  EXPECT_TRUE(lost.empty());
}

TEST(BounceSocketLink, BadAddressesAreRefused) {
  BounceSocketLink a;
  ASSERT_TRUE(a.open().is_ok());
  EXPECT_EQ(a.add_peer(1, {}).code(), StatusCode::kTransport);
  EXPECT_EQ(a.add_peer(1, std::vector<std::byte>(16)).code(), StatusCode::kTransport);
  EXPECT_EQ(a.add_peer(1, std::vector<std::byte>(16 + 65)).code(), StatusCode::kTransport);
  // Well formed, but nobody listens there.
  ASSERT_TRUE(a.add_peer(1, std::vector<std::byte>(40, std::byte{'x'})).is_ok());
  std::vector<Transport::Message> frames;
  std::vector<PeerId> lost;
  a.progress(&frames, &lost);
  EXPECT_EQ(lost, std::vector<PeerId>{1});
}

TEST(BounceNearLink, FramesGoBySocketHereAndByMessageToEverybodyElse) {
  test::FakeTransport below_a;
  test::FakeTransport below_b;
  BounceNearLink a(&below_a);
  BounceNearLink b(&below_b);
  ASSERT_TRUE(a.open().is_ok());
  ASSERT_TRUE(b.open().is_ok());
  EXPECT_LE(a.address().size(), kMaxBounceLinkAddress);
  ASSERT_TRUE(a.add_peer(1, b.address()).is_ok());
  ASSERT_TRUE(b.add_peer(2, a.address()).is_ok());
  EXPECT_TRUE(a.is_announced());
  ASSERT_TRUE(a.send(1, frame_of(5)));
  // Somebody who claims the near peer's name is not heard.
  below_b.messages.push_back({2, frame_of(66)});
  std::vector<Transport::Message> at_a;
  std::vector<Transport::Message> at_b;
  std::vector<PeerId> lost;
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (at_b.empty() && std::chrono::steady_clock::now() < until) {
    a.progress(&at_a, &lost);
    b.progress(&at_b, &lost);
  }
  ASSERT_EQ(at_b.size(), 1U);
  EXPECT_EQ(at_b[0].bytes, frame_of(5));
  EXPECT_TRUE(below_a.sent.empty());
  // Another boot, another network namespace, another user, or one that does not say.
  for (const std::size_t differs : {std::size_t{0}, std::size_t{16}, std::size_t{24}, std::size_t{99}}) {
    std::vector<std::byte> address = differs == 99 ? std::vector<std::byte>{} : b.address();
    if (differs != 99) address[differs] ^= std::byte{1};
    const PeerId peer = static_cast<PeerId>(10 + differs);
    ASSERT_TRUE(a.add_peer(peer, address).is_ok());
    EXPECT_FALSE(a.is_announced());
    ASSERT_TRUE(a.send(peer, frame_of(7)));
    EXPECT_EQ(below_a.sent.back().peer, peer);
    below_a.messages.push_back({peer, frame_of(8)});
    at_a.clear();
    a.progress(&at_a, &lost);
    ASSERT_EQ(at_a.size(), 1U);
    EXPECT_EQ(at_a[0].peer, peer);
    a.remove_peer(peer);
    EXPECT_FALSE(a.send(peer, frame_of(7)));
  }
  EXPECT_TRUE(lost.empty());
}

TEST(BounceMetadata, ComesBackAndLeavesTheBaseAlone) {
  const std::vector<std::byte> base = frame_of(5, 100);
  const BounceMetadata head{.version = 1,
                            .link = BounceLinkKind::kMessages,
                            .kind = MemoryKind::kDevice,
                            .arena_base = 0x123456789,
                            .arena_bytes = 1 << 20,
                            .max_chunk = 4096,
                            .link_address = frame_of(7, 60)};
  const std::vector<std::byte> wrapped = wrap_bounce_metadata(head, base);
  std::optional<BounceMetadata> got;
  std::span<const std::byte> rest;
  ASSERT_TRUE(unwrap_bounce_metadata(wrapped, &rest, &got).is_ok());
  EXPECT_EQ(std::vector<std::byte>(rest.begin(), rest.end()), base);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->link, head.link);
  EXPECT_EQ(got->kind, head.kind);
  EXPECT_EQ(got->arena_base, head.arena_base);
  EXPECT_EQ(got->max_chunk, head.max_chunk);
  EXPECT_EQ(got->link_address, head.link_address);
}

TEST(BounceMetadata, WhatIsCutOrDamagedIsRefusedAndWhatIsForeignIsLeftAlone) {
  const std::vector<std::byte> wrapped = wrap_bounce_metadata({.link_address = frame_of(7, 60)}, {});
  std::optional<BounceMetadata> got;
  std::span<const std::byte> rest;
  for (std::size_t size = 0; size < wrapped.size(); ++size) {
    const std::vector<std::byte> cut(wrapped.begin(), wrapped.begin() + static_cast<std::ptrdiff_t>(size));
    const bool is_foreign = size < 8;
    EXPECT_EQ(unwrap_bounce_metadata(cut, &rest, &got).is_ok(), is_foreign) << size;
    EXPECT_FALSE(got) << size;
    EXPECT_EQ(rest.size(), cut.size());
  }
  for (std::size_t at = 0; at < wrapped.size(); ++at) {
    std::vector<std::byte> damaged = wrapped;
    damaged[at] ^= std::byte{1};
    EXPECT_EQ(unwrap_bounce_metadata(damaged, &rest, &got).is_ok(), at < 8) << at;
    EXPECT_FALSE(got) << at;
  }
}

}  // namespace
}  // namespace kvt
