#include "core/fragment_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace kvt {
namespace {

Fragment sample() {
  Fragment fragment;
  fragment.source = {.base = 0x10000, .slot_bytes = 1024, .slot_stride = 1024, .slot_count = 8};
  fragment.destination = {.base = 0x90000, .slot_bytes = 2048, .slot_stride = 4096, .slot_count = 4};
  fragment.source_offset = 256;
  fragment.destination_offset = 512;
  fragment.bytes = 64;
  fragment.count = 2;
  fragment.source_stride = 128;
  fragment.destination_stride = 256;
  return fragment;
}

std::string refusal(const std::function<void(Fragment*)>& change) {
  Fragment fragment = sample();
  change(&fragment);
  FragmentTable table;
  const Status status = FragmentTable::create({sample(), fragment}, &table);
  EXPECT_TRUE(table.fragments().empty());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

PieceTraits traits_of(const std::function<void(Fragment*)>& change) {
  Fragment fragment = sample();
  change(&fragment);
  FragmentTable table;
  EXPECT_TRUE(FragmentTable::create({sample(), fragment}, &table).is_ok());
  return table.traits();
}

TEST(FragmentTable, TraitsAreOfTheWorstAddressStrideAndSize) {
  EXPECT_EQ(traits_of([](Fragment*) {}), (PieceTraits{16, 16, 64}));
  EXPECT_EQ(traits_of([](Fragment* f) { f->source.base += 8; }), (PieceTraits{8, 8, 64}));
  EXPECT_EQ(traits_of([](Fragment* f) { f->destination_offset -= 4; }), (PieceTraits{4, 4, 64}));
  // Both sides are as far off: words of 16 bytes meet all the same.
  EXPECT_EQ(traits_of([](Fragment* f) { f->source_offset += 2, f->destination_offset += 2; }),
            (PieceTraits{2, 16, 64}));
  EXPECT_EQ(traits_of([](Fragment* f) { f->bytes = 31; }), (PieceTraits{1, 16, 47}));
  EXPECT_EQ(traits_of([](Fragment* f) { f->source_stride = 100; }), (PieceTraits{4, 4, 64}));
  // The stride of a single piece leads nowhere.
  EXPECT_EQ(traits_of([](Fragment* f) { f->source_stride = 100, f->count = 1; }), (PieceTraits{16, 16, 64}));
  // Either side takes any of its slots, so equal strides do not help.
  EXPECT_EQ(traits_of([](Fragment* f) { f->source.slot_stride = 1032, f->destination.slot_stride = 4104; }),
            (PieceTraits{8, 8, 64}));
  FragmentTable empty;
  ASSERT_TRUE(FragmentTable::create({}, &empty).is_ok());
  EXPECT_EQ(empty.traits(), (PieceTraits{16, 16, 0}));
}

TEST(FragmentTable, TraitsOfASliceAreTheWorstOfItsTables) {
  PieceTraits all;
  all.add({16, 16, 0});
  EXPECT_EQ(all, (PieceTraits{16, 16, 0}));
  all.add({16, 16, 4096});
  all.add({4, 8, 8192});
  all.add({8, 4, 512});
  EXPECT_EQ(all, (PieceTraits{4, 4, 512}));
}

TEST(FragmentTable, LimitsAreThoseOfTheSmallestPools) {
  Fragment other = sample();
  other.source.slot_count = 5;
  other.destination.slot_count = 9;
  FragmentTable table;
  ASSERT_TRUE(FragmentTable::create({sample(), other}, &table).is_ok());
  EXPECT_EQ(table.source_slot_limit(), 5);
  EXPECT_EQ(table.destination_slot_limit(), 4);
  EXPECT_EQ(table.bytes_per_pair(), 256U);
}

TEST(FragmentTable, RefusesPiecesThatLeaveTheirSlot) {
  EXPECT_NE(refusal([](Fragment* f) { f->source_offset = 1024 - 191; }).find("fragment 1, source"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->destination_offset = 2048 - 319; }).find("fragment 1, destination"),
            std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->count = 8; }).find("leave the slot"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->bytes = 0; }).find("no bytes"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->count = 0; }).find("no bytes"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->source_stride = 63; }).find("overlap"), std::string::npos);
}

TEST(FragmentTable, RefusesWhatOverflows) {
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  EXPECT_NE(refusal([](Fragment* f) { f->source_offset = kHuge; }).find("leave the slot"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->count = kHuge; }).find("leave the slot"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->source_stride = kHuge / 2; }).find("leave the slot"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->source.base = kHuge - 100; }).find("address space"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->source.slot_stride = kHuge / 2; }).find("address space"), std::string::npos);
}

TEST(FragmentTable, RefusesMalformedPools) {
  EXPECT_NE(refusal([](Fragment* f) { f->source.slot_count = 0; }).find("no slots"), std::string::npos);
  EXPECT_NE(refusal([](Fragment* f) { f->source.slot_stride = 1000; }).find("slotStride"), std::string::npos);
}

TEST(FragmentTable, JoinsPiecesAndFragmentsThatTouchOnBothSides) {
  Fragment first = sample();
  first.source_stride = first.destination_stride = 64;
  Fragment second = first;
  second.source_offset += 128;
  second.destination_offset += 128;
  FragmentTable table;
  ASSERT_TRUE(FragmentTable::create({first, second}, &table).is_ok());
  ASSERT_EQ(table.fragments().size(), 1U);
  EXPECT_EQ(table.fragments()[0].bytes, 256U);
  EXPECT_EQ(table.fragments()[0].count, 1U);
  EXPECT_EQ(table.bytes_per_pair(), 256U);
}

TEST(FragmentTable, KeepsApartWhatTouchesOnOneSideOnly) {
  Fragment first = sample();
  first.source_stride = 64;
  Fragment second = sample();
  second.count = 1;
  Fragment third = second;
  third.source_offset += 64;
  FragmentTable table;
  ASSERT_TRUE(FragmentTable::create({first, second, third}, &table).is_ok());
  EXPECT_EQ(table.fragments().size(), 3U);
}

TEST(FragmentTable, NothingIsATable) {
  FragmentTable table;
  EXPECT_TRUE(FragmentTable::create({}, &table).is_ok());
  EXPECT_EQ(table.bytes_per_pair(), 0U);
}

}  // namespace
}  // namespace kvt
