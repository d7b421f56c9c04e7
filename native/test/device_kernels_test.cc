// The kernels against their host references, on random slices. Needs a GPU.
#include <gtest/gtest.h>

#include <random>

#include "device/abort_words.h"
#include "device/kernel_reference.h"
#include "device_fixture.h"
#include "device_plan.h"

namespace kvt {
namespace {

constexpr auto kUntouched = std::byte{0xa7};

std::vector<std::byte> noise(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

// Where two images first differ, for a message that helps; -1: nowhere.
std::ptrdiff_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return at.first == a.end() && at.second == b.end() ? -1 : at.first - a.begin();
}

class Kernels : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    KVT_ASSERT_OK(PageKernels::load(context_, &kernels_));
    KVT_ASSERT_OK(DeviceBuffer::create(context_, std::size_t{4} << 20, &tables_));
    source_ = pool(std::size_t{64} << 20);
    destination_ = pool(std::size_t{64} << 20);
    arena_ = pool(std::size_t{64} << 20);
  }

  // The parts with their tables and slots on the device.
  std::vector<CopyPart> upload_parts(const PlacedPlan& plan) {
    std::size_t at = 0;
    const auto put = [&](const void* from, std::size_t bytes) {
      std::memcpy(tables_.host().data() + at, from, bytes);
      const std::uintptr_t address = tables_.device() + at;
      at += (bytes + 15) / 16 * 16;
      return address;
    };
    std::vector<CopyPart> parts = plan.parts();
    for (std::size_t g = 0; g < parts.size(); ++g) {
      const std::vector<DeviceFragment>& fragments = plan.tables[g].fragments;
      const std::vector<std::int32_t>& slots = plan.groups[g].slot_pairs;
      parts[g].fragments_at = put(fragments.data(), fragments.size() * sizeof(DeviceFragment));
      parts[g].source_slots_at = put(slots.data(), slots.size() * sizeof(std::int32_t));
      parts[g].destination_slots_at = parts[g].source_slots_at + sizeof(std::int32_t);
    }
    EXPECT_TRUE(tables_.upload(at, stream_).is_ok());
    return parts;
  }

  struct Case {
    PlacedPlan on_host;
    PlacedPlan on_device;
    std::vector<std::byte> source;
    std::vector<std::byte> destination;  // the reference's
    std::vector<CopyPart> host_parts;
    std::vector<CopyPart> device_parts;
    CopyArguments host{};
    CopyArguments device{};
  };

  // The same slice over host memory and over the pools, both poisoned the same way.
  void prepare(const RandomPlan& plan, std::uint32_t seed, Case* c) {
    c->source = noise(plan.source_bytes + 64, seed);
    c->destination.assign(plan.destination_bytes + 64, kUntouched);
    upload(source_->base(), c->source);
    upload(destination_->base(), c->destination);
    c->on_host = PlacedPlan::place(plan, reinterpret_cast<std::uintptr_t>(c->source.data()),
                                   reinterpret_cast<std::uintptr_t>(c->destination.data()));
    c->on_device = PlacedPlan::place(plan, source_->base(), destination_->base());
    c->host_parts = c->on_host.parts();
    c->device_parts = upload_parts(c->on_device);
    KVT_ASSERT_OK(make_copy_arguments(c->host_parts, &c->host));
    KVT_ASSERT_OK(make_copy_arguments(c->device_parts, &c->device));
  }

  // As the slots of a slice bring it: with it, tiles are handed out as workers ask.
  std::uintptr_t new_state() {
    upload(arena_->base(), std::vector<std::byte>(sizeof(LaunchState)));
    return arena_->base();
  }

  void expect_same_destination(const Case& c, const char* what) {
    KVT_ASSERT_OK(stream_.synchronize());
    const std::vector<std::byte> actual = download(destination_->base(), c.destination.size());
    ASSERT_EQ(first_difference(actual, c.destination), -1) << what;
  }

  std::unique_ptr<PageKernels> kernels_;
  DeviceBuffer tables_;
  std::unique_ptr<DevicePool> source_, destination_, arena_;
};

constexpr unsigned kGrids[] = {1, 2, 5, 16, 132};

TEST_F(Kernels, PagedCopyOfAnyAlignmentAndSize) {
  for (std::uint32_t seed = 1; seed <= 150; ++seed) {
    PlanGenerator generator(seed, {});
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(generator.next(), seed, &c));
    reference_copy(c.host);
    if (seed % 2 == 0) c.device.state = new_state();
    KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, CopyMethod::kRegisters, c.device, kGrids[seed % 5], stream_));
    ASSERT_NO_FATAL_FAILURE(expect_same_destination(c, ("seed " + std::to_string(seed)).c_str()));
  }
}

TEST_F(Kernels, PagedCopyOfAlignedPagesByBothMethods) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    PlanGenerator generator(seed, {.max_piece_bytes = 70'000, .alignment = 16});
    const RandomPlan plan = generator.next();
    for (const CopyMethod method : {CopyMethod::kRegisters, CopyMethod::kBulk}) {
      if (method == CopyMethod::kBulk && !kernels_->has_bulk()) continue;
      Case c;
      ASSERT_NO_FATAL_FAILURE(prepare(plan, seed, &c));
      for (const CopyTable& table : c.on_device.tables) ASSERT_TRUE(table.traits.alignment == 16U);
      reference_copy(c.host);
      if (seed % 2 == 0) c.device.state = new_state();
      KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, method, c.device, kGrids[seed % 5], stream_));
      ASSERT_NO_FATAL_FAILURE(expect_same_destination(
          c, ("seed " + std::to_string(seed) + (method == CopyMethod::kBulk ? ", bulk" : ", registers")).c_str()));
    }
  }
}

// Large enough that every staging tile is used many times over, on a grid smaller than the device.
TEST_F(Kernels, ManyPagesByBothMethods) {
  constexpr std::size_t kPage = 32 << 10;
  RandomPlan plan;
  plan.source_bytes = plan.destination_bytes = std::size_t{48} << 20;
  const SlotPool slots{0, kPage, kPage, static_cast<std::int32_t>(plan.source_bytes / kPage)};
  RandomPlan::Group group;
  group.fragments.push_back({.source = slots, .destination = slots, .bytes = kPage, .count = 1});
  for (std::int32_t i = 0; i < slots.slot_count; ++i) {
    group.slot_pairs.push_back(i * 5 % slots.slot_count);
    group.slot_pairs.push_back(i * 7 % slots.slot_count);
  }
  plan.groups.push_back(group);
  for (const CopyMethod method : {CopyMethod::kRegisters, CopyMethod::kBulk}) {
    if (method == CopyMethod::kBulk && !kernels_->has_bulk()) continue;
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(plan, 9, &c));
    reference_copy(c.host);
    for (const unsigned blocks : kGrids) {
      upload(destination_->base(), std::vector<std::byte>(c.destination.size(), kUntouched));
      c.device.turn = 1U << blocks % 3;
      c.device.state = blocks == 5 ? 0 : new_state();
      KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, method, c.device, blocks, stream_));
      ASSERT_NO_FATAL_FAILURE(expect_same_destination(c, method == CopyMethod::kBulk ? "bulk" : "registers"));
    }
  }
}

TEST_F(Kernels, AGatedLaunchCopiesUnlessItWasTakenBack) {
  AbortWords words(context_);
  AbortWord* word = nullptr;
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    PlanGenerator generator(seed, {.alignment = seed % 2 == 0 ? 16UL : 1UL});
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(generator.next(), seed, &c));
    if (c.device.tile_end == 0) continue;
    const bool is_bulk = seed % 2 == 0 && kernels_->has_bulk();
    const CopyMethod method = is_bulk ? CopyMethod::kBulk : CopyMethod::kRegisters;
    const unsigned blocks = kGrids[seed % 5];
    KVT_ASSERT_OK(words.take(&word));
    c.device.abort = reinterpret_cast<std::uintptr_t>(word);
    c.device.state = new_state();
    c.device.is_gated = 1;
    ASSERT_TRUE(AbortWords::revoke(word));
    // Taken back, its tables and slots may be gone.
    CopyArguments revoked = c.device;
    for (CopyGroup& group : revoked.groups) group.fragments = group.source_slots = group.destination_slots = 64;
    const std::vector<std::byte> before(c.destination.size(), kUntouched);
    upload(destination_->base(), before);
    KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, method, revoked, blocks, stream_));
    KVT_ASSERT_OK(stream_.synchronize());
    ASSERT_EQ(first_difference(download(destination_->base(), before.size()), before), -1) << "seed " << seed;
    EXPECT_EQ(word->started, 1U);
    words.give_back(word);

    KVT_ASSERT_OK(words.take(&word));
    c.device.abort = reinterpret_cast<std::uintptr_t>(word);
    c.device.state = new_state();
    reference_copy(c.host);
    KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, method, c.device, blocks, stream_));
    ASSERT_NO_FATAL_FAILURE(expect_same_destination(c, "gated"));
    EXPECT_FALSE(AbortWords::revoke(word)) << "it has begun";
    words.give_back(word);
  }
}

TEST_F(Kernels, AnAbortIsSeenBetweenTiles) {
  constexpr std::size_t kPage = 32 << 10;
  constexpr std::size_t bytes = std::size_t{48} << 20;
  RandomPlan plan;
  plan.source_bytes = plan.destination_bytes = bytes;
  const SlotPool slots{0, kPage, kPage, static_cast<std::int32_t>(bytes / kPage)};
  RandomPlan::Group group;
  group.fragments.push_back({.source = slots, .destination = slots, .bytes = kPage, .count = 1});
  for (std::int32_t i = 0; i < slots.slot_count; ++i) {
    group.slot_pairs.push_back(i);
    group.slot_pairs.push_back(i);
  }
  plan.groups.push_back(group);
  AbortWords words(context_);
  for (const CopyMethod method : {CopyMethod::kRegisters, CopyMethod::kBulk}) {
    if (method == CopyMethod::kBulk && !kernels_->has_bulk()) continue;
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(plan, 3, &c));
    AbortWord* word = nullptr;
    KVT_ASSERT_OK(words.take(&word));
    c.device.abort = reinterpret_cast<std::uintptr_t>(word);
    c.device.state = new_state();
    upload(destination_->base(), std::vector<std::byte>(c.destination.size(), kUntouched));
    // It was asked before it began, and is not gated: it begins, and ends early.
    (void)AbortWords::revoke(word);
    KVT_ASSERT_OK(kernels_->copy(CopyKind::kPaged, method, c.device, 1, stream_));
    KVT_ASSERT_OK(stream_.synchronize());
    const std::vector<std::byte> seen = download(destination_->base(), c.destination.size());
    std::size_t copied = 0;
    for (std::size_t at = 0; at + kTileBytes <= bytes; at += kTileBytes) {
      const bool is_untouched = std::all_of(seen.begin() + static_cast<std::ptrdiff_t>(at),
                                            seen.begin() + static_cast<std::ptrdiff_t>(at + kTileBytes),
                                            [](std::byte b) { return b == kUntouched; });
      if (is_untouched) continue;
      ++copied;
      ASSERT_EQ(std::memcmp(seen.data() + at, c.source.data() + at, kTileBytes), 0) << "tile at " << at;
    }
    EXPECT_GT(copied, 0U);
    EXPECT_LT(copied, bytes / kTileBytes / 2);
    words.give_back(word);
  }
}

TEST_F(Kernels, TheFusedSumIsTheReferences) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    PlanGenerator generator(seed, {});
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(generator.next(), seed, &c));
    std::uint64_t expected = 0;
    c.host.checksum = reinterpret_cast<std::uintptr_t>(&expected);
    reference_copy_summed(c.host);
    upload(arena_->base(), std::vector<std::byte>(8));
    c.device.checksum = arena_->base();
    KVT_ASSERT_OK(kernels_->copy(CopyKind::kPagedSummed, CopyMethod::kRegisters, c.device, kGrids[seed % 5], stream_));
    ASSERT_NO_FATAL_FAILURE(expect_same_destination(c, "summed"));
    std::uint64_t actual = 0;
    std::memcpy(&actual, download(arena_->base(), 8).data(), 8);
    ASSERT_EQ(actual, expected) << "seed " << seed;
  }
}

TEST_F(Kernels, ChunksGatherAndScatter) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    PlanGenerator generator(seed, {});
    const RandomPlan plan = generator.next();
    Case c;
    ASSERT_NO_FATAL_FAILURE(prepare(plan, seed, &c));
    const std::uint64_t total = c.host.range_end;
    std::vector<std::byte> linear(total + 64, kUntouched);
    c.host.linear = reinterpret_cast<std::uintptr_t>(linear.data());
    reference_gather(c.host);
    upload(arena_->base(), std::vector<std::byte>(total + 64, kUntouched));
    std::uint64_t at = 0;
    while (at < total) {
      const std::uint64_t end = std::min<std::uint64_t>(at + generator.pick(1, 40'000), total);
      restrict_range(c.device_parts, at, end, &c.device);
      c.device.linear = arena_->base() + at;
      KVT_ASSERT_OK(kernels_->copy(CopyKind::kGather, CopyMethod::kRegisters, c.device, kGrids[seed % 5], stream_));
      at = end;
    }
    KVT_ASSERT_OK(stream_.synchronize());
    const std::vector<std::byte> gathered = download(arena_->base(), total + 64);
    ASSERT_EQ(first_difference(gathered, linear), -1) << "gather, seed " << seed;

    reference_scatter(c.host);
    for (at = 0; at < total;) {
      const std::uint64_t end = std::min<std::uint64_t>(at + generator.pick(1, 40'000), total);
      restrict_range(c.device_parts, at, end, &c.device);
      c.device.linear = arena_->base() + at;
      KVT_ASSERT_OK(kernels_->copy(CopyKind::kScatter, CopyMethod::kRegisters, c.device, kGrids[seed % 5], stream_));
      at = end;
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_destination(c, ("scatter, seed " + std::to_string(seed)).c_str()));
  }
}

TEST_F(Kernels, RefusesNoBlocksAndBulkOfAnotherKind) {
  CopyArguments arguments{};
  arguments.group_count = 1;
  arguments.tile_end = 1;
  EXPECT_EQ(kernels_->copy(CopyKind::kPaged, CopyMethod::kRegisters, arguments, 0, stream_).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(kernels_->copy(CopyKind::kGather, CopyMethod::kBulk, arguments, 4, stream_).code(),
            StatusCode::kCapability);
}

// ------------------------------------------------------------------------------------------------ content

ContentJob job_over(std::uintptr_t base, ContentLayout layout, std::size_t token_bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  ContentJob job;
  constexpr std::uint32_t kHeads = 3;
  job.tokens_per_block = static_cast<std::uint32_t>(1 + random() % 20);
  const std::size_t entry_bytes = kHeads * job.tokens_per_block * token_bytes;
  const std::size_t slot_bytes = 2 * entry_bytes + random() % 40;
  for (std::uint32_t i = 0; i < 2; ++i) {
    job.entries.push_back({.pool = {base, slot_bytes, slot_bytes + random() % 30, 9},
                           .offset = i * entry_bytes,
                           .layer = 5 + i,
                           .role = 1,
                           .layout = layout,
                           .heads = kHeads,
                           .first_head = 6,
                           .token_bytes = token_bytes});
  }
  job.entries[1].pool = job.entries[0].pool;
  job.first_block = random() % 3;
  job.slots = {3, 1, -1, 0, 7, 8};
  const std::uint64_t begin = job.first_block * job.tokens_per_block;
  job.token_begin = begin + random() % 5;
  std::vector<std::uint32_t> ids(job.token_begin + 1 + random() % (6 * job.tokens_per_block));
  for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(random());
  std::vector<std::uint64_t> seeds(ids.size());
  chain_token_seeds(ids, seeds);
  job.seeds.assign(seeds.begin() + static_cast<std::ptrdiff_t>(job.token_begin), seeds.end());
  return job;
}

void move_to(ContentJob* job, std::uintptr_t base) {
  for (ContentEntry& entry : job->entries) entry.pool.base = base;
}

TEST_F(Kernels, FillAndVerifyAreThoseOfTheHost) {
  std::uint32_t seed = 0;
  for (const ContentLayout layout : {ContentLayout::kHeadMajor, ContentLayout::kTokenMajor}) {
    for (const std::size_t token_bytes : {256UL, 576UL, 64UL, 12UL, 7UL, 1UL}) {
      for (int round = 0; round < 6; ++round) {
        ++seed;
        const std::size_t shift = seed % 3;  // also addresses that no word is aligned to
        std::vector<std::byte> host(1 << 20, kUntouched);
        ContentJob job = job_over(reinterpret_cast<std::uintptr_t>(host.data()) + shift, layout, token_bytes, seed);
        KVT_ASSERT_OK(check_content_job(job));
        upload(destination_->base(), host);
        const std::uint64_t expected_bytes = fill_content(job);
        ContentJob on_device = job;
        move_to(&on_device, destination_->base() + shift);
        std::uint64_t bytes = 0;
        KVT_ASSERT_OK(kernels_->fill(on_device, stream_, &bytes));
        EXPECT_EQ(bytes, expected_bytes);
        ASSERT_EQ(first_difference(download(destination_->base(), host.size()), host), -1) << "seed " << seed;

        // Three bytes break, on both sides.
        std::mt19937 random(seed);
        for (int i = 0; i < 3; ++i) host[random() % host.size() / 16] ^= std::byte{0x11};
        upload(destination_->base(), host);
        const ContentCheck expected = verify_content(job);
        ContentCheck actual;
        KVT_ASSERT_OK(kernels_->verify(on_device, stream_, &actual));
        EXPECT_EQ(actual.bytes_checked, expected.bytes_checked);
        EXPECT_EQ(actual.wrong_bytes, expected.wrong_bytes);
        ASSERT_EQ(actual.first_wrong.has_value(), expected.first_wrong.has_value());
        if (expected.first_wrong) {
          EXPECT_EQ(actual.first_wrong->entry, expected.first_wrong->entry);
          EXPECT_EQ(actual.first_wrong->head, expected.first_wrong->head);
          EXPECT_EQ(actual.first_wrong->token, expected.first_wrong->token);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvt
