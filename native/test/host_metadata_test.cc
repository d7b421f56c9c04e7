#include "transport/host_metadata.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvt {
namespace {

HostMetadata sample() {
  HostMetadata metadata;
  metadata.boot_id.fill(std::byte{3});
  metadata.token.fill(std::byte{9});
  metadata.socket_name = "kv-transceiver-test";
  metadata.regions = {{0x10000, 4096}, {0x90000, 1 << 20}};
  return metadata;
}

StatusCode decode_changed(const std::function<void(std::vector<std::byte>*)>& change) {
  std::vector<std::byte> bytes = encode_host_metadata(sample());
  change(&bytes);
  HostMetadata out;
  const Status status = decode_host_metadata(bytes, &out);
  EXPECT_EQ(status.is_ok(), !out.socket_name.empty()) << "an output is set only on success";
  return status.code();
}

TEST(HostMetadata, SurvivesItsOwnEncoding) {
  HostMetadata out;
  ASSERT_TRUE(decode_host_metadata(encode_host_metadata(sample()), &out).is_ok());
  EXPECT_EQ(out.socket_name, sample().socket_name);
  EXPECT_EQ(out.token, sample().token);
  EXPECT_EQ(out.boot_id, sample().boot_id);
  ASSERT_EQ(out.regions.size(), 2U);
  EXPECT_EQ(out.regions[1].base, 0x90000U);
  EXPECT_EQ(out.regions[1].size, 1U << 20);
}

TEST(HostMetadata, RefusesEveryFieldThatIsWrong) {
  constexpr StatusCode kRefused = StatusCode::kTransport;
  EXPECT_EQ(decode_changed([](auto* b) { b->clear(); }), kRefused);
  EXPECT_EQ(decode_changed([](auto* b) { b->pop_back(); }), kRefused);
  EXPECT_EQ(decode_changed([](auto* b) { b->push_back(std::byte{0}); }), kRefused);
  EXPECT_EQ(decode_changed([](auto* b) { (*b)[0] = std::byte{'X'}; }), kRefused);
  EXPECT_EQ(decode_changed([](auto* b) { (*b)[8] = std::byte{2}; }), kRefused) << "version";
  EXPECT_EQ(decode_changed([](auto* b) { (*b)[10] = std::byte{0}; }), kRefused) << "name length";
  EXPECT_EQ(decode_changed([](auto* b) { (*b)[11] = std::byte{0xff}; }), kRefused) << "name length";
  EXPECT_EQ(decode_changed([](auto* b) { (*b)[15] = std::byte{0xff}; }), kRefused) << "region count";
  EXPECT_EQ(decode_changed([](auto* b) { std::memset(b->data() + b->size() - 8, 0, 8); }), kRefused) << "size 0";
  EXPECT_EQ(decode_changed([](auto* b) { std::memset(b->data() + b->size() - 8, 0xff, 8); }), kRefused) << "wraps";
  EXPECT_EQ(decode_changed([](auto* b) { std::memcpy(b->data() + b->size() - 16, b->data() + b->size() - 32, 8); }),
            kRefused)
      << "overlaps";
}

TEST(HostMetadata, AnyBytesAreEitherDecodedOrRefused) {
  std::mt19937 random(11);
  const std::vector<std::byte> good = encode_host_metadata(sample());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = good;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    HostMetadata out;
    const Status status = decode_host_metadata(bytes, &out);
    if (status.is_ok()) {
      ASSERT_EQ(encode_host_metadata(out), bytes);
    }
  }
}

TEST(HostMetadata, TheBootIdIsTheMachines) {
  std::array<std::byte, 16> first{};
  std::array<std::byte, 16> second{};
  ASSERT_TRUE(read_boot_id(&first).is_ok());
  ASSERT_TRUE(read_boot_id(&second).is_ok());
  EXPECT_EQ(first, second);
  EXPECT_NE(first, (std::array<std::byte, 16>{}));
}

}  // namespace
}  // namespace kvt
