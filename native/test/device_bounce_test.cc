// The bounce path with an arena on a GPU: gather and scatter kernels against PlanCursor on the host, and two agents
// that bounce over the p2p transport. Needs a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "device_fixture.h"
#include "transport/bounce_device_mover.h"
#include "transport/bounce_transport.h"
#include "transport/p2p_transport.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSlotBytes = 8192;
constexpr std::int32_t kSlots = 600;
constexpr std::size_t kPool = kSlotBytes * kSlots;

Fragment piece(std::uintptr_t from, std::uintptr_t to, std::size_t source_offset, std::size_t destination_offset,
               std::size_t bytes, std::size_t count, std::size_t source_stride, std::size_t destination_stride) {
  Fragment fragment;
  fragment.source = {from, kSlotBytes, kSlotBytes, kSlots};
  fragment.destination = {to, kSlotBytes, kSlotBytes, kSlots};
  fragment.source_offset = source_offset;
  fragment.destination_offset = destination_offset;
  fragment.bytes = bytes;
  fragment.count = count;
  fragment.source_stride = source_stride;
  fragment.destination_stride = destination_stride;
  return fragment;
}

// Aligned heads, and an odd piece that no 16-byte copy fits.
std::shared_ptr<const FragmentTable> table_of(std::uintptr_t from, std::uintptr_t to) {
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create(
      {piece(from, to, 0, 64, 512, 8, 768, 640), piece(from, to, 7001, 6003, 777, 1, 0, 0)}, table.get());
  EXPECT_TRUE(status.is_ok()) << status.message();
  return table;
}

std::vector<std::byte> noise(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

std::vector<std::int32_t> shuffled_pairs(std::mt19937* random, std::size_t count) {
  std::vector<std::int32_t> from(kSlots);
  std::iota(from.begin(), from.end(), 0);
  std::vector<std::int32_t> to = from;
  std::shuffle(from.begin(), from.end(), *random);
  std::shuffle(to.begin(), to.end(), *random);
  std::vector<std::int32_t> pairs;
  for (std::size_t i = 0; i < count; ++i) pairs.insert(pairs.end(), {from[i], to[i]});
  return pairs;
}

std::vector<std::byte> expected_after(const std::vector<std::byte>& source, std::vector<std::byte> destination,
                                      const FragmentTable& table, const std::vector<std::int32_t>& pairs) {
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    for (const Fragment& f : table.fragments()) {
      for (std::size_t k = 0; k < f.count; ++k) {
        std::memcpy(
            destination.data() + static_cast<std::size_t>(pairs[i + 1]) * kSlotBytes + f.destination_offset +
                k * f.destination_stride,
            source.data() + static_cast<std::size_t>(pairs[i]) * kSlotBytes + f.source_offset + k * f.source_stride,
            f.bytes);
      }
    }
  }
  return destination;
}

class DeviceBounce : public DeviceTest {};

TEST_F(DeviceBounce, ChunksOfAnySizeAreGatheredAndScatteredAsTheHostDoes) {
  const auto source = pool(kPool);
  const auto destination = pool(kPool);
  const auto arena = pool(std::size_t{4} << 20);
  const std::vector<std::byte> from = noise(kPool, 1);
  const std::vector<std::byte> before = noise(kPool, 2);
  upload(source->base(), from);
  upload(destination->base(), before);
  const auto table = table_of(source->base(), destination->base());
  std::mt19937 random(5);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, 590);
  auto sources = std::make_shared<std::vector<PackedGroup>>(1, PackedGroup{table, {}});
  auto destinations = std::make_shared<std::vector<PackedGroup>>(1, PackedGroup{table, {}});
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    (*sources)[0].slots.push_back(pairs[i]);
    (*destinations)[0].slots.push_back(pairs[i + 1]);
  }
  BounceDeviceMover mover(0, 16);
  KVT_ASSERT_OK(mover.open());
  const std::uint64_t total = packed_bytes(*sources);
  BounceMover::JobId job = 0;
  const auto run = [&](std::shared_ptr<const std::vector<PackedGroup>> groups, PackedSide side, std::uint64_t begin,
                       std::uint64_t end) {
    mover.start({++job, std::move(groups), side, begin, end, arena->base() + 4096});
    std::vector<BounceMover::Ended> ended;
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (ended.empty() && std::chrono::steady_clock::now() < until) mover.work(&ended);
    ASSERT_EQ(ended.size(), 1U);
    ASSERT_TRUE(ended[0].status.is_ok()) << ended[0].status.message();
  };
  for (std::uint64_t begin = 0; begin < total;) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + 1 + random() % (1 << 20), total);
    ASSERT_NO_FATAL_FAILURE(run(sources, PackedSide::kSource, begin, end));
    ASSERT_NO_FATAL_FAILURE(run(destinations, PackedSide::kDestination, begin, end));
    begin = end;
  }
  EXPECT_EQ(download(source->base(), kPool), from);
  EXPECT_EQ(download(destination->base(), kPool), expected_after(from, before, *table, pairs));
}

TEST_F(DeviceBounce, TwoAgentsBounceThroughArenasOnTheGpu) {
  const BounceOptions options{.arena_bytes = std::size_t{4} << 20,
                              .max_chunk_bytes = std::size_t{1} << 20,
                              .max_inflight_chunks = 4,
                              .request_timeout = 5000ms,
                              .is_forced = true};
  std::vector<std::unique_ptr<Transport>> side;
  std::vector<Region> pools(2);
  std::vector<std::vector<std::byte>> metadata(2);
  for (std::size_t i = 0; i < 2; ++i) {
    Status status;
    std::unique_ptr<Transport> base = make_p2p_transport({.device = 0}, &status);
    KVT_ASSERT_OK(status);
    side.push_back(make_bounce_transport(std::move(base), options, &status));
    KVT_ASSERT_OK(status);
    KVT_ASSERT_OK(side[i]->open());
    KVT_ASSERT_OK(side[i]->allocate_region(kPool, &pools[i]));
    KVT_ASSERT_OK(side[i]->metadata(&metadata[i]));
  }
  const auto drive = [&](auto done) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < until) {
      for (const auto& transport : side) transport->progress();
    }
  };
  for (std::size_t i = 0; i < 2; ++i) KVT_ASSERT_OK(side[i]->begin_add_peer(1, metadata[1 - i]));
  for (std::size_t i = 0; i < 2; ++i) {
    Status error;
    PeerState state = PeerState::kConnecting;
    drive([&] { return (state = side[i]->poll_peer(1, &error)) != PeerState::kConnecting; });
    ASSERT_EQ(state, PeerState::kReady) << error.message();
  }
  const std::vector<std::byte> from = noise(kPool, 3);
  const std::vector<std::byte> before = noise(kPool, 4);
  upload(pools[0].base, from);
  upload(pools[1].base, before);
  const auto table = table_of(pools[0].base, pools[1].base);
  std::mt19937 random(6);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, 590);
  InboundGroup inbound{9, table, {}};
  for (std::size_t i = 1; i < pairs.size(); i += 2) inbound.slots.push_back(pairs[i]);
  KVT_ASSERT_OK(side[1]->expect_inbound(1, 77, {inbound}));
  const std::vector<PlanGroup> groups{{table, pairs, 9}};
  EXPECT_EQ(side[0]->route(1, 77, groups).lane, static_cast<std::uint8_t>(DataPath::kBounce));
  BatchResult result = side[0]->post_slice(1, 1, 77, groups, nullptr);
  drive([&] {
    if (result.state == BatchState::kInFlight) result = side[0]->poll(1);
    return result.state != BatchState::kInFlight;
  });
  ASSERT_EQ(result.state, BatchState::kDone) << result.error.message();
  bool has_ended = false;
  drive([&] { return has_ended = has_ended || side[1]->end_inbound(1, 77); });
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(download(pools[1].base, kPool), expected_after(from, before, *table, pairs));
  EXPECT_TRUE(side[0]->close());
  EXPECT_TRUE(side[1]->close());
}

}  // namespace
}  // namespace kvt
