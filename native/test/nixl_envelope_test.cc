#include "transport/nixl_envelope.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace kvt::nixl {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

Envelope sample() {
  Envelope envelope{.name = "ctx-0", .regions = {}, .blob = bytes_of("opaque to us")};
  EXPECT_TRUE(envelope.regions.add({.base = 0x10000, .size = 0x4000, .kind = MemoryKind::kHost, .device = -1}));
  EXPECT_TRUE(envelope.regions.add({.base = 0x900000, .size = 0x100, .kind = MemoryKind::kDevice, .device = 3}));
  return envelope;
}

std::vector<std::byte> encoded(const Envelope& envelope) {
  std::vector<std::byte> bytes;
  const Status status = encode_envelope(envelope, &bytes);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return bytes;
}

// Puts a right checksum under bytes that a test changed, so that the field itself is what gets refused.
std::vector<std::byte> resealed(std::vector<std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i + 8 < bytes.size(); ++i)
    hash = (hash ^ std::to_integer<std::uint8_t>(bytes[i])) * 0x100000001b3ull;
  for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>((hash >> (8 * i)) & 0xff);
  return bytes;
}

std::string refusal(const std::vector<std::byte>& bytes) {
  Envelope out;
  const Status status = decode_envelope(bytes, &out);
  EXPECT_EQ(status.code(), StatusCode::kTransport);
  return status.message();
}

TEST(NixlEnvelope, RoundTripKeepsEveryField) {
  const std::vector<std::byte> bytes = encoded(sample());
  EXPECT_EQ(bytes.size(), 16u + 5 + 2 * 24 + 12 + 8);
  Envelope out;
  ASSERT_TRUE(decode_envelope(bytes, &out).is_ok());
  EXPECT_EQ(out.name, "ctx-0");
  EXPECT_EQ(out.blob, bytes_of("opaque to us"));
  ASSERT_EQ(out.regions.all().size(), 2u);
  EXPECT_EQ(out.regions.all()[1].base, 0x900000u);
  EXPECT_EQ(out.regions.all()[1].size, 0x100u);
  EXPECT_EQ(out.regions.all()[1].kind, MemoryKind::kDevice);
  EXPECT_EQ(out.regions.all()[1].device, 3);
  EXPECT_EQ(out.regions.all()[0].device, -1);
}

TEST(NixlEnvelope, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = encoded(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    refusal(std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_NE(refusal(longer).find("length"), std::string::npos);
}

TEST(NixlEnvelope, EveryFlippedBitIsRefused) {
  const std::vector<std::byte> bytes = encoded(sample());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<std::byte> damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    refusal(damaged);
  }
}

TEST(NixlEnvelope, EveryByteValueUnderARightChecksumIsDecodedOrRefused) {
  const std::vector<std::byte> bytes = encoded(sample());
  std::size_t accepted = 0;
  for (std::size_t at = 0; at + 8 < bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::vector<std::byte> changed = bytes;
      changed[at] = static_cast<std::byte>(value);
      Envelope out;
      if (decode_envelope(resealed(changed), &out).is_ok()) ++accepted;
    }
  }
  // At least each byte with its own value; and never all of them, for the header alone fixes 16 bytes.
  EXPECT_GE(accepted, bytes.size() - 8);
  EXPECT_LT(accepted, 256 * (bytes.size() - 8 - 16));
}

TEST(NixlEnvelope, NamesTheMemoryForProbes) {
  Envelope envelope = sample();
  ASSERT_GE(envelope.regions.all().size(), 2U);
  envelope.probes = {envelope.regions.all()[1]};
  Envelope out;
  ASSERT_TRUE(decode_envelope(encoded(envelope), &out).is_ok());
  EXPECT_EQ(out.regions.all().size(), envelope.regions.all().size());
  ASSERT_EQ(out.probes.size(), 1U);
  EXPECT_EQ(out.probes[0].base, envelope.probes[0].base);
  EXPECT_EQ(out.probes[0].kind, envelope.probes[0].kind);
}

TEST(NixlEnvelope, RefusesBadFieldsByName) {
  const std::vector<std::byte> bytes = encoded(sample());
  std::vector<std::byte> version = bytes;
  version[4] = std::byte{3};
  EXPECT_NE(refusal(resealed(version)).find("version 3"), std::string::npos);

  std::vector<std::byte> name = bytes;
  name[16] = std::byte{0};
  EXPECT_NE(refusal(resealed(name)).find("agent name"), std::string::npos);

  std::vector<std::byte> kind = bytes;
  kind[16 + 5 + 16] = std::byte{9};
  EXPECT_NE(refusal(resealed(kind)).find("memory kind"), std::string::npos);

  std::vector<std::byte> wraps = bytes;
  for (std::size_t i = 0; i < 8; ++i) wraps[16 + 5 + 8 + i] = std::byte{0xff};
  EXPECT_NE(refusal(resealed(wraps)).find("wraps around"), std::string::npos);

  std::vector<std::byte> regions = bytes;
  regions[10] = std::byte{0xff};
  EXPECT_NE(refusal(resealed(regions)).find("4096 regions"), std::string::npos);
}

TEST(NixlEnvelope, RefusesABlobThatNamesAnother) {
  Envelope envelope = sample();
  const std::string start = "nixlSerDes|Agent";
  envelope.blob = bytes_of(start + std::string("\x05\0\0\0\0\0\0\0", 8) + "ctx-1|Conns");
  EXPECT_EQ(name_in_blob(envelope.blob), "ctx-1");
  EXPECT_NE(refusal(encoded(envelope)).find("two agents"), std::string::npos);
  envelope.name = "ctx-1";
  Envelope out;
  EXPECT_TRUE(decode_envelope(encoded(envelope), &out).is_ok());
  // A length that leaves the blob is no name.
  EXPECT_EQ(name_in_blob(bytes_of(start + std::string("\xff\0\0\0\0\0\0\0", 8) + "ctx-1")), std::nullopt);
  EXPECT_EQ(name_in_blob(bytes_of("nixlSerDes|Age")), std::nullopt);
}

TEST(NixlEnvelope, RefusesToEncodeWhatItWouldNotDecode) {
  std::vector<std::byte> bytes;
  Envelope spaced = sample();
  spaced.name = "a\nb";
  EXPECT_FALSE(encode_envelope(spaced, &bytes).is_ok());
  Envelope empty = sample();
  empty.blob.clear();
  EXPECT_FALSE(encode_envelope(empty, &bytes).is_ok());
  Envelope long_name = sample();
  long_name.name = std::string(256, 'n');
  EXPECT_FALSE(encode_envelope(long_name, &bytes).is_ok());
}

}  // namespace
}  // namespace kvt::nixl
