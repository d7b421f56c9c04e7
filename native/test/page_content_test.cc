#include "core/page_content.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvt {
namespace {

// One pool of four slots, each holding two entries of 2 heads x 4 tokens.
class PageContent : public testing::TestWithParam<std::tuple<ContentLayout, std::size_t>> {
 protected:
  static constexpr std::uint32_t kHeads = 2;
  static constexpr std::uint32_t kTokensPerBlock = 4;

  void SetUp() override {
    std::tie(layout_, token_bytes_) = GetParam();
    entry_bytes_ = kHeads * kTokensPerBlock * token_bytes_;
    slot_bytes_ = 2 * entry_bytes_;
    memory_.assign(4 * slot_bytes_ + 64, kUntouched);
  }

  ContentJob job(std::vector<std::int32_t> slots, std::uint64_t begin, std::size_t tokens) {
    ContentJob job;
    for (std::uint32_t i = 0; i < 2; ++i) {
      job.entries.push_back({.pool = {reinterpret_cast<std::uintptr_t>(memory_.data()), slot_bytes_, slot_bytes_, 4},
                             .offset = i * entry_bytes_,
                             .layer = 5 + i,
                             .role = 1,
                             .layout = layout_,
                             .heads = kHeads,
                             .first_head = 6,
                             .token_bytes = token_bytes_});
    }
    job.tokens_per_block = kTokensPerBlock;
    job.first_block = 2;
    job.slots = std::move(slots);
    job.token_begin = begin;
    std::vector<std::uint32_t> ids(begin + tokens);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(i * 7);
    std::vector<std::uint64_t> seeds(ids.size());
    chain_token_seeds(ids, seeds);
    job.seeds.assign(seeds.begin() + static_cast<std::ptrdiff_t>(begin), seeds.end());
    return job;
  }

  std::size_t index_of(std::size_t entry, std::size_t slot, std::size_t head, std::size_t token_in_block) const {
    const std::size_t place =
        layout_ == ContentLayout::kHeadMajor ? head * kTokensPerBlock + token_in_block : token_in_block * kHeads + head;
    return slot * slot_bytes_ + entry * entry_bytes_ + place * token_bytes_;
  }

  static constexpr auto kUntouched = std::byte{0xee};
  ContentLayout layout_{};
  std::size_t token_bytes_ = 0;
  std::size_t entry_bytes_ = 0;
  std::size_t slot_bytes_ = 0;
  std::vector<std::byte> memory_;
};

TEST_P(PageContent, WhatIsFilledVerifies) {
  const ContentJob filled = job({3, 1}, 8, 8);
  ASSERT_TRUE(check_content_job(filled).is_ok());
  EXPECT_EQ(fill_content(filled), 2 * slot_bytes_);
  const ContentCheck check = verify_content(filled);
  EXPECT_EQ(check.bytes_checked, 2 * slot_bytes_);
  EXPECT_EQ(check.wrong_bytes, 0U);
  EXPECT_FALSE(check.first_wrong.has_value());
  // Slots 0 and 2 and what lies behind the pool were not asked for.
  for (std::size_t i = 0; i < slot_bytes_; ++i) {
    ASSERT_EQ(memory_[i], kUntouched);
    ASSERT_EQ(memory_[2 * slot_bytes_ + i], kUntouched);
  }
  for (std::size_t i = 4 * slot_bytes_; i < memory_.size(); ++i) ASSERT_EQ(memory_[i], kUntouched);
}

TEST_P(PageContent, OnlyTheTokensOfTheRangeAreTouched) {
  // Tokens 10 .. 12 of blocks 2 and 3: two of the first block, one of the second.
  EXPECT_EQ(fill_content(job({0, 1}, 10, 3)), 3 * 2 * kHeads * token_bytes_);
  for (std::size_t slot = 0; slot < 2; ++slot) {
    for (std::size_t token = 0; token < kTokensPerBlock; ++token) {
      const std::size_t prompt_token = (2 + slot) * kTokensPerBlock + token;
      const std::vector<std::byte> blank(token_bytes_, kUntouched);
      for (std::size_t entry = 0; entry < 2; ++entry) {
        for (std::size_t head = 0; head < kHeads; ++head) {
          const bool is_blank =
              std::memcmp(memory_.data() + index_of(entry, slot, head, token), blank.data(), token_bytes_) == 0;
          EXPECT_EQ(is_blank, prompt_token < 10 || prompt_token > 12) << "token " << prompt_token;
        }
      }
    }
  }
}

TEST_P(PageContent, HolesAreSkipped) {
  EXPECT_EQ(fill_content(job({-1, 2}, 8, 8)), slot_bytes_);
  EXPECT_EQ(memory_[0], kUntouched);
}

TEST_P(PageContent, CountsWrongBytesAndNamesTheFirst) {
  const ContentJob whole = job({3, 1}, 8, 8);
  fill_content(whole);
  memory_[index_of(1, 1, 1, 2) + token_bytes_ - 1] ^= std::byte{1};
  memory_[index_of(1, 1, 1, 3)] ^= std::byte{0x80};
  const ContentCheck check = verify_content(whole);
  EXPECT_EQ(check.wrong_bytes, 2U);
  ASSERT_TRUE(check.first_wrong.has_value());
  EXPECT_EQ(check.first_wrong->entry, 1U);
  EXPECT_EQ(check.first_wrong->head, 7U);
  EXPECT_EQ(check.first_wrong->token, 14U);
}

TEST_P(PageContent, SwappedHeadsLayersAndPromptsAreSeen) {
  const ContentJob whole = job({3, 1}, 8, 8);
  const auto swapped = [&](auto change) {
    fill_content(whole);
    ContentJob other = whole;
    change(&other);
    return verify_content(other).wrong_bytes;
  };
  const std::size_t most = 2 * slot_bytes_ / 2;
  EXPECT_GT(swapped([](ContentJob* j) { j->entries[0].first_head = 7; }), most / 4);
  EXPECT_GT(swapped([](ContentJob* j) { std::swap(j->entries[0].layer, j->entries[1].layer); }), most);
  EXPECT_GT(swapped([](ContentJob* j) { j->entries[1].role = 2; }), most / 2);
  EXPECT_GT(swapped([](ContentJob* j) { std::swap(j->slots[0], j->slots[1]); }), most);
  EXPECT_GT(swapped([](ContentJob* j) { j->seeds[0] ^= 1; }), token_bytes_);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PageContent,
                         testing::Combine(testing::Values(ContentLayout::kHeadMajor, ContentLayout::kTokenMajor),
                                          testing::Values(256UL, 64UL, 12UL, 3UL)));

TEST(PageContentSeeds, DependOnEveryTokenBefore) {
  const std::vector<std::uint32_t> one{1, 2, 3};
  const std::vector<std::uint32_t> two{1, 2, 4};
  const std::vector<std::uint32_t> three{0, 2, 3};
  std::vector<std::uint64_t> a(3);
  std::vector<std::uint64_t> b(3);
  std::vector<std::uint64_t> c(3);
  chain_token_seeds(one, a);
  chain_token_seeds(two, b);
  chain_token_seeds(three, c);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_NE(a[1], c[1]);
  EXPECT_NE(a[2], c[2]);
}

TEST(PageContentCheck, RefusesWhatLeavesTheSlotOrThePool) {
  ContentJob job;
  job.entries = {{.pool = {0x1000, 128, 128, 2},
                  .offset = 0,
                  .layer = 0,
                  .role = 0,
                  .layout = ContentLayout::kHeadMajor,
                  .heads = 2,
                  .first_head = 0,
                  .token_bytes = 16}};
  job.tokens_per_block = 4;
  job.slots = {0, 1};
  EXPECT_TRUE(check_content_job(job).is_ok());
  const auto refused = [&job](auto change) {
    ContentJob other = job;
    change(&other);
    return check_content_job(other).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](ContentJob* j) { j->entries[0].offset = 1; }));
  EXPECT_TRUE(refused([](ContentJob* j) { j->entries[0].token_bytes = static_cast<std::size_t>(-1); }));
  EXPECT_TRUE(refused([](ContentJob* j) { j->entries[0].heads = 0; }));
  EXPECT_TRUE(refused([](ContentJob* j) { j->slots[1] = 2; }));
  EXPECT_TRUE(refused([](ContentJob* j) { j->tokens_per_block = 0; }));
  EXPECT_TRUE(refused([](ContentJob* j) { j->first_block = std::uint64_t{1} << 60; }));
}

}  // namespace
}  // namespace kvt
