// NixlTransport over a real NIXL, in one process. KVT_PACKAGE_TREE is the package's `.nixl` folder.

#include "transport/nixl_transport.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "transport/nixl_envelope.h"

namespace kvt::nixl {
namespace {

using namespace std::chrono_literals;

NixlOptions options_for(const std::string& name) {
  return {.agent_name = name, .library_path = "", .package_tree = KVT_PACKAGE_TREE, .peer_grace = 100ms};
}

// Two agents that one thread drives in turn, as two processes would.
class NixlPair : public testing::Test {
 protected:
  static constexpr std::size_t kPool = std::size_t{160} << 20;

  void SetUp() override {
    const NixlProbe probe = probe_nixl(options_for("probe"));
    if (!probe.available) {
      const char* required = std::getenv("KV_TRANSCEIVER_REQUIRE");
      if (required != nullptr && std::strstr(required, "nixl") != nullptr) FAIL() << probe.reason;
      GTEST_SKIP() << "NIXL IS NOT TESTED: " << probe.reason;
    }
    static int incarnation = 0;
    ++incarnation;
    writer_ = open("writer-" + std::to_string(incarnation));
    target_ = open("target-" + std::to_string(incarnation));
    ASSERT_TRUE(writer_->allocate_region(kPool, &source_).is_ok());
    ASSERT_TRUE(target_->allocate_region(kPool, &destination_).is_ok());
    ASSERT_TRUE(target_->metadata(&metadata_).is_ok());
  }
  void TearDown() override {
    if (writer_ != nullptr) {
      EXPECT_TRUE(writer_->close());
    }
    if (target_ != nullptr) {
      EXPECT_TRUE(target_->close());
    }
  }

  static std::unique_ptr<Transport> open(const std::string& name) {
    Status error;
    std::unique_ptr<Transport> transport = make_nixl_transport(options_for(name), &error);
    EXPECT_NE(transport, nullptr) << error.message();
    const Status opened = transport->open();
    EXPECT_TRUE(opened.is_ok()) << opened.message();
    return transport;
  }

  BatchResult finish(BatchId batch, BatchResult result) {
    const TimePoint deadline = std::chrono::steady_clock::now() + 30s;
    while (result.state == BatchState::kInFlight && std::chrono::steady_clock::now() < deadline) {
      target_->progress();
      result = writer_->poll(batch);
    }
    return result;
  }

  std::unique_ptr<Transport> writer_;
  std::unique_ptr<Transport> target_;
  Region source_;
  Region destination_;
  std::vector<std::byte> metadata_;
};

TEST_F(NixlPair, ScatteredAndOddRunsArriveByteForByteAndNowhereElse) {
  auto* from = reinterpret_cast<std::uint8_t*>(source_.base);
  auto* to = reinterpret_cast<std::uint8_t*>(destination_.base);
  std::mt19937 random(20260901);
  for (std::size_t i = 0; i < kPool; i += 4) {
    const std::uint32_t value = static_cast<std::uint32_t>(random());
    std::memcpy(from + i, &value, 4);
  }
  std::vector<std::uint8_t> expected(kPool, 0);

  // Every second 32 KiB page of the first 128 MiB, shuffled on both sides; then odd sizes at odd addresses.
  constexpr std::size_t kPage = 32768;
  std::vector<std::size_t> pages(2048);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::size_t> places = pages;
  std::shuffle(pages.begin(), pages.end(), random);
  std::shuffle(places.begin(), places.end(), random);
  std::vector<kvt::Run> runs;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    runs.push_back({.source = source_.base + 2 * pages[i] * kPage,
                    .destination = destination_.base + 2 * places[i] * kPage,
                    .bytes = kPage});
  }
  const std::size_t odd_base = std::size_t{136} << 20;
  std::size_t at = odd_base + 1;
  for (const std::size_t size : {1u, 2u, 3u, 7u, 63u, 64u, 65u, 4095u, 4097u, 65537u, 1048573u}) {
    runs.push_back({.source = source_.base + at + 5, .destination = destination_.base + at, .bytes = size});
    at += size + 3;
  }
  for (const kvt::Run& run : runs) {
    std::memcpy(expected.data() + (run.destination - destination_.base), from + (run.source - source_.base), run.bytes);
  }

  ASSERT_TRUE(writer_->begin_add_peer(1, metadata_).is_ok());
  Status error;
  ASSERT_EQ(writer_->poll_peer(1, &error), PeerState::kReady);
  const BatchLimits limits = writer_->limits();
  BatchId batch = 0;
  for (std::size_t i = 0; i < runs.size(); i += limits.max_runs) {
    const std::size_t count = std::min(limits.max_runs, runs.size() - i);
    const BatchResult result = finish(batch + 1, writer_->post(batch + 1, 1, {runs.data() + i, count}));
    ASSERT_EQ(result.state, BatchState::kDone) << result.error.message();
    ++batch;
  }
  EXPECT_EQ(std::memcmp(to, expected.data(), kPool), 0);
}

// UCX writes a jump over the first bytes of these when it hooks them, and then races with every malloc.
TEST_F(NixlPair, TheMemoryCallsOfTheProcessAreNotHooked) {
  for (const char* name : {"sbrk", "brk", "munmap", "mmap", "madvise"}) {
    const auto* code = static_cast<const std::uint8_t*>(::dlsym(RTLD_DEFAULT, name));
    ASSERT_NE(code, nullptr);
    constexpr std::uint8_t kJumpRelative = 0xe9;
    constexpr std::uint8_t kMoveToR11[] = {0x49, 0xbb};
    EXPECT_NE(code[0], kJumpRelative) << name;
    EXPECT_NE(std::memcmp(code, kMoveToR11, sizeof(kMoveToR11)), 0) << name;
  }
}

TEST_F(NixlPair, APeerRemovedWhileIdleMayComeBack) {
  const kvt::Run run{.source = source_.base, .destination = destination_.base, .bytes = 4096};
  for (PeerId peer = 1; peer <= 3; ++peer) {
    std::memset(reinterpret_cast<void*>(source_.base), static_cast<int>(peer), run.bytes);
    ASSERT_TRUE(writer_->begin_add_peer(peer, metadata_).is_ok());
    ASSERT_EQ(finish(peer, writer_->post(peer, peer, {&run, 1})).state, BatchState::kDone);
    EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(destination_.base + 4095), peer);
    writer_->remove_peer(peer);
    writer_->remove_peer(peer);
    EXPECT_EQ(writer_->post(100, peer, {&run, 1}).error.code(), StatusCode::kState);
    EXPECT_FALSE(writer_->peer_owns(peer, destination_.base, 1));
  }
}

TEST_F(NixlPair, RegionsAllocatedLaterAreReachedThroughNewMetadata) {
  Region second;
  ASSERT_TRUE(target_->allocate_region(12345, &second).is_ok());
  EXPECT_EQ(second.size, 12345u);
  ASSERT_TRUE(writer_->begin_add_peer(1, metadata_).is_ok());
  EXPECT_FALSE(writer_->peer_owns(1, second.base, second.size));
  writer_->remove_peer(1);
  std::vector<std::byte> metadata;
  ASSERT_TRUE(target_->metadata(&metadata).is_ok());
  ASSERT_TRUE(writer_->begin_add_peer(2, metadata).is_ok());
  EXPECT_TRUE(writer_->peer_owns(2, second.base, second.size));
  EXPECT_FALSE(writer_->peer_owns(2, second.base, second.size + 1));
  std::memset(reinterpret_cast<void*>(source_.base), 0x5a, 12345);
  const kvt::Run run{.source = source_.base, .destination = second.base, .bytes = 12345};
  ASSERT_EQ(finish(1, writer_->post(1, 2, {&run, 1})).state, BatchState::kDone);
  EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(second.base + 12344), 0x5a);
}

TEST_F(NixlPair, DamagedMetadataIsRefusedAndTheRealOneStillWorks) {
  for (std::size_t size = 0; size < metadata_.size(); ++size) {
    EXPECT_FALSE(writer_->begin_add_peer(1, {metadata_.data(), size}).is_ok());
  }
  for (std::size_t bit = 0; bit < 8 * metadata_.size(); ++bit) {
    std::vector<std::byte> damaged = metadata_;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(writer_->begin_add_peer(1, damaged).is_ok());
  }
  std::vector<std::byte> own;
  ASSERT_TRUE(writer_->metadata(&own).is_ok());
  EXPECT_EQ(writer_->begin_add_peer(1, own).code(), StatusCode::kTransport);
  EXPECT_TRUE(writer_->begin_add_peer(1, metadata_).is_ok());
}

// What a peer could send that keeps our frame and checksum and cuts NIXL's own bytes short.
TEST_F(NixlPair, ATruncatedNixlBlobUnderAGoodFrameIsRefused) {
  Envelope envelope;
  ASSERT_TRUE(decode_envelope(metadata_, &envelope).is_ok());
  const std::size_t name_at = static_cast<std::size_t>(name_in_blob(envelope.blob).value().data() -
                                                       reinterpret_cast<const char*>(envelope.blob.data()));
  const std::vector<std::byte> whole = envelope.blob;
  PeerId peer = 10;
  for (std::size_t size = name_at + envelope.name.size(); size < whole.size(); size += 5) {
    // A name of its own each time: NIXL refuses one that failed before without looking at the rest.
    envelope.name.replace(0, 4, std::to_string(1000 + peer));
    std::vector<std::byte> blob = whole;
    std::memcpy(blob.data() + name_at, envelope.name.data(), envelope.name.size());
    blob.resize(size);
    envelope.blob = blob;
    std::vector<std::byte> bytes;
    ASSERT_TRUE(encode_envelope(envelope, &bytes).is_ok());
    EXPECT_FALSE(writer_->begin_add_peer(++peer, bytes).is_ok()) << size << " of " << whole.size() << " bytes";
  }
}

TEST_F(NixlPair, ASecondProbeTellsThePathInUse) {
  const NixlProbe probe =
      probe_nixl({.agent_name = "", .library_path = "/nonexistent/libnixl_capi.so", .package_tree = ""});
  EXPECT_TRUE(probe.available);
  EXPECT_FALSE(probe.version.empty());
  if (std::getenv("KV_TRANSCEIVER_NIXL_LIB") != nullptr) return;
  ASSERT_FALSE(probe.notes.empty());
  EXPECT_NE(probe.notes.back().find("takes effect in a new process"), std::string::npos);
}

}  // namespace
}  // namespace kvt::nixl
