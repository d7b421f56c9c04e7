// Which kernel copies a slice, against the one that is explained, and what is told of the slower one; over a stand-in
// for the driver. Needs no GPU.
#include <random>

#include "core/copy_choice.h"
#include "core/copy_explanation.h"
#include "fake_device_fixture.h"

namespace kvt::test {
namespace {

class FakeCopies : public FakeDeviceTest {
 protected:
  static constexpr Ticket kTicket = 77;

  void connect(const TransportFactory& factory, std::size_t bytes = std::size_t{24} << 20) {
    writer_ = std::make_unique<TestAgent>("writer", factory);
    receiver_ = std::make_unique<TestAgent>("receiver", factory);
    KVT_ASSERT_OK(writer_->opening());
    KVT_ASSERT_OK(receiver_->opening());
    KVT_ASSERT_OK(writer_->allocate(bytes, &source_));
    KVT_ASSERT_OK(receiver_->allocate(bytes, &destination_));
    const std::vector<std::byte> ours = writer_->metadata();
    KVT_ASSERT_OK(writer_->add_peer(1, receiver_->metadata(), "decode-3"));
    KVT_ASSERT_OK(receiver_->add_peer(1, ours));
  }

  // `count` pages of `bytes`, `slot` apart and so far off on each side, each to another place.
  PlanGroup pages(std::size_t slot, std::size_t bytes, std::size_t source_off, std::size_t destination_off,
                  std::int32_t count) const {
    Fragment fragment;
    fragment.source = {source_.base + source_off, slot, slot, count};
    fragment.destination = {destination_.base + destination_off, slot, slot, count};
    fragment.bytes = bytes;
    fragment.count = 1;
    auto table = std::make_shared<FragmentTable>();
    EXPECT_TRUE(FragmentTable::create({fragment}, table.get()).is_ok());
    PlanGroup group{table, {}};
    for (std::int32_t i = 0; i < count; ++i) group.slot_pairs.insert(group.slot_pairs.end(), {i, (i * 5 + 1) % count});
    return group;
  }

  void move(const std::vector<PlanGroup>& groups, Ticket ticket = 0) {
    const SubmissionId id = ++last_;
    writer_->submit({.id = id, .peer = 1, .flow = 1, .groups = groups, .after = nullptr, .ticket = ticket});
    const Notice notice = writer_->settled(id);
    ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
  }

  std::unique_ptr<TestAgent> writer_, receiver_;
  Region source_, destination_;
  SubmissionId last_ = 0;
};

TEST_F(FakeCopies, TheKernelThatIsExplainedIsTheOneLaunched) {
  connect(p2p_on(0));
  const char* const names[] = {"kvt_copy_bulk", "kvt_copy", "cuMemcpyDtoDAsync"};
  const CopyMeans means[] = {CopyMeans::kBulk, CopyMeans::kRegisters, CopyMeans::kEngines};
  std::mt19937 random(3);
  const auto pick = [&random](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  int seen[3] = {};
  for (int i = 0; i < 120; ++i) {
    std::vector<PlanGroup> groups;
    for (std::size_t g = pick(1, 3); g > 0; --g) {
      const std::size_t unit = pick(0, 3) == 0 ? std::size_t{1} << pick(0, 3) : 16;
      const std::size_t slot = pick(1, 200) * unit + 16;
      groups.push_back(pages(slot, pick(1, slot / unit) * unit, pick(0, 3) * unit, pick(0, 3) * unit,
                             static_cast<std::int32_t>(pick(1, 20))));
    }
    if (i % 10 == 0) {
      groups = {pages(std::size_t{1} << 20, std::size_t{1} << 20, 0, 0, 16)};
      groups[0].slot_pairs.clear();
      for (std::int32_t k = 0; k < 16; ++k) groups[0].slot_pairs.insert(groups[0].slot_pairs.end(), {k, k});
    }
    const CopyExplanation explained =
        explain_copy({.path = DataPath::kP2p, .has_bulk_kernel = true, .blocks = 16}, groups);
    std::uint64_t before[3];
    for (int k = 0; k < 3; ++k) before[k] = FakeCuda::calls(names[k]);
    ASSERT_NO_FATAL_FAILURE(move(groups));
    for (int k = 0; k < 3; ++k) {
      const bool is_taken = FakeCuda::calls(names[k]) > before[k];
      EXPECT_EQ(is_taken, explained.means == means[k]) << names[k] << ": " << explained.reason;
      seen[k] += is_taken ? 1 : 0;
    }
  }
  for (const int count : seen) EXPECT_GT(count, 10);
}

TEST_F(FakeCopies, WhatGoesThroughRegistersIsToldOnceForEachCause) {
  connect(p2p_on(0));
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(move({pages(4096, 4096, 0, 0, 16)}));
  EXPECT_EQ(writer_->advice(), std::vector<std::string>());
  // A table that is made anew is no news.
  for (const std::size_t off : {3, 3, 5}) ASSERT_NO_FATAL_FAILURE(move({pages(4096, 4000, off, 0, 16)}));
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(move({pages(4096, 64, 0, 0, 16)}));
  const std::vector<std::string> told = writer_->advice();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(
      told[0],
      "peer decode-3: pages go through registers, 1 byte at a time, and not by the bulk kernel: the source's base "
      "+ offset (group 0, fragment 0) is " +
          std::to_string(source_.base + 3) +
          ", no multiple of 16; at most 16 blocks; place pools, slots and layers of both sides' page tables at "
          "multiples of 16 bytes: base, slotStride, and offset and bytes of every piece");
  EXPECT_EQ(
      told[1],
      "peer decode-3: pieces of 64 bytes on average go through registers and not by the bulk kernel, which takes "
      "pieces of 256 bytes and more; at most 16 blocks; pieces grow with the same blockLayout on both sides ('HND' "
      "where tensor-parallel sizes differ), the same tensor-parallel size, or more tokens per block");
  EXPECT_EQ(receiver_->advice(), std::vector<std::string>());
}

TEST_F(FakeCopies, BouncedPagesOutOfLineAreToldOfByTheirWriter) {
  connect(bounced());
  const std::size_t slots = 16;
  const auto expect = [&](Ticket ticket, const PlanGroup& group) {
    InboundGroup inbound{.key = 0, .table = group.table, .slots = {}};
    for (std::size_t i = 1; i < group.slot_pairs.size(); i += 2) inbound.slots.push_back(group.slot_pairs[i]);
    KVT_ASSERT_OK(receiver_->expect_inbound(1, ticket, {inbound}));
  };
  const PlanGroup aligned = pages(4096, 64, 0, 0, slots);
  ASSERT_NO_FATAL_FAILURE(expect(kTicket, aligned));
  ASSERT_NO_FATAL_FAILURE(move({aligned}, kTicket));
  EXPECT_EQ(writer_->advice(), std::vector<std::string>());
  // On the receiver's side alone.
  const PlanGroup off = pages(4096, 64, 0, 8, slots);
  ASSERT_NO_FATAL_FAILURE(expect(kTicket + 1, off));
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(move({off}, kTicket + 1));
  const std::vector<std::string> told = writer_->advice();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].find("peer decode-3: gather and scatter kernels go through registers, 8 bytes at a time instead of "
                         "16: the destination's base + offset"),
            0U)
      << told[0];
  EXPECT_EQ(receiver_->advice(), std::vector<std::string>());
}

// Compute capability 8.0 has no bulk engine, which nobody can mend.
class OldGpu : public FakeCopies {
 protected:
  void SetUp() override {
    FakeCuda::order({"capability 8"});
    FakeCopies::SetUp();
  }
};

TEST_F(OldGpu, CopiesThroughRegistersAndSaysNothingOfIt) {
  connect(p2p_on(0));
  const std::uint64_t before = FakeCuda::calls("kvt_copy_bulk");
  const std::uint64_t by_registers = FakeCuda::calls("kvt_copy");
  ASSERT_NO_FATAL_FAILURE(move({pages(4096, 4096, 0, 0, 16)}));
  EXPECT_EQ(FakeCuda::calls("kvt_copy_bulk"), before);
  EXPECT_EQ(FakeCuda::calls("kvt_copy"), by_registers + 1);
  EXPECT_EQ(writer_->advice(), std::vector<std::string>());
}

}  // namespace
}  // namespace kvt::test
