#include "core/bounce_frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvt {
namespace {

BounceFrame want_of(std::size_t groups, std::uint32_t slots_each) {
  BounceFrame frame;
  frame.type = BounceFrameType::kWant;
  frame.request = 0x1122334455667788;
  frame.ticket = 0x99aabbccddeeff00;
  frame.total_bytes = 1 << 20;
  frame.chunk_bytes = 4096;
  for (std::size_t i = 0; i < groups; ++i) {
    frame.groups.push_back({static_cast<std::uint32_t>(i * 7), slots_each, i * 0x0101010101010101});
    for (std::uint32_t k = 0; k < slots_each; ++k) frame.slots.push_back(static_cast<std::int32_t>(i * 1000 + k));
  }
  return frame;
}

TEST(BounceFrame, TheLargestOfEachTypeFitsAndComesBack) {
  BounceFrame want = want_of(kMaxWantGroups, kMaxWantSlots / kMaxWantGroups);
  BounceFrame grant;
  grant.type = BounceFrameType::kGrant;
  grant.request = 5;
  for (std::uint32_t i = 0; i < kMaxGrantsPerFrame; ++i) grant.grants.push_back({i + 1, i * 4096ULL, i, 4096});
  BounceFrame cancel;
  cancel.type = BounceFrameType::kCancel;
  for (std::uint64_t i = 0; i < kMaxUnproven; ++i) cancel.unproven.push_back(i * i);
  BounceFrame data;
  data.type = BounceFrameType::kData;
  data.grant = 77;
  data.chunk = 3;
  BounceFrame nack;
  nack.type = BounceFrameType::kNack;
  nack.refusal = BounceRefusal::kForeignSlot;
  for (const BounceFrame& frame : {want, grant, cancel, data, nack}) {
    const std::vector<std::byte> bytes = encode_bounce_frame(frame);
    EXPECT_LE(bytes.size(), kMaxBounceFrameBytes);
    BounceFrame back;
    const Status status = decode_bounce_frame(bytes, &back);
    ASSERT_TRUE(status.is_ok()) << status.message();
    EXPECT_EQ(encode_bounce_frame(back), bytes);
    EXPECT_EQ(back.request, frame.request);
    EXPECT_EQ(back.slots, frame.slots);
    EXPECT_EQ(back.unproven, frame.unproven);
    EXPECT_EQ(back.refusal, frame.refusal);
  }
}

TEST(BounceFrame, EveryTruncationAndExtensionIsRefused) {
  const std::vector<std::byte> whole = encode_bounce_frame(want_of(3, 11));
  BounceFrame out;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A buffer of exactly that size, so that a read behind it is caught.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(decode_bounce_frame(cut, &out).code(), StatusCode::kTransport) << size;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_bounce_frame(longer, &out).is_ok());
}

TEST(BounceFrame, CountsAndSizesBeyondTheirLimitsAreRefused) {
  BounceFrame out;
  const auto refused = [&out](const BounceFrame& frame) {
    return decode_bounce_frame(encode_bounce_frame(frame), &out).code() == StatusCode::kTransport;
  };
  EXPECT_TRUE(refused(want_of(kMaxWantGroups + 1, 2)));
  EXPECT_TRUE(refused(want_of(0, 0)));
  EXPECT_TRUE(refused(want_of(1, 0)));
  EXPECT_TRUE(refused(want_of(2, kMaxWantSlots / 2 + 1)));
  BounceFrame want = want_of(1, 1);
  want.chunk_bytes = 0;
  EXPECT_TRUE(refused(want));
  want = want_of(1, 1);
  want.total_bytes = 0;
  EXPECT_TRUE(refused(want));
  want.total_bytes = ~std::uint64_t{0};
  EXPECT_TRUE(refused(want)) << "too many chunks";
  BounceFrame nack;
  nack.type = BounceFrameType::kNack;
  nack.refusal = static_cast<BounceRefusal>(99);
  EXPECT_TRUE(refused(nack));
  BounceFrame unknown;
  unknown.type = static_cast<BounceFrameType>(17);
  EXPECT_TRUE(refused(unknown));
}

TEST(BounceFrame, NoiseNeverReadsOutsideNorPasses) {
  std::mt19937 random(3);
  const std::vector<std::byte> whole = encode_bounce_frame(want_of(2, 5));
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = whole;
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t k = 0; k < changes; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    BounceFrame out;
    if (!decode_bounce_frame(bytes, &out).is_ok()) continue;
    EXPECT_LE(out.groups.size(), kMaxWantGroups);
    EXPECT_LE(out.slots.size(), kMaxWantSlots);
    EXPECT_LE(out.grants.size(), kMaxGrantsPerFrame);
    EXPECT_LE(out.unproven.size(), kMaxUnproven);
  }
}

}  // namespace
}  // namespace kvt
