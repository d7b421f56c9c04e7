#include "core/page_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace kvt {
namespace {

TEST(PageCopy, CopiesEveryByteAndNoOther) {
  std::mt19937 random(3);
  constexpr std::size_t kSpan = 20'000;
  constexpr auto kUntouched = std::byte{0xa5};
  std::vector<std::byte> source(kSpan);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  for (const std::size_t bytes : {0UL, 1UL, 63UL, 64UL, 1023UL, 1024UL, 1025UL, 4096UL, 9999UL, 16384UL}) {
    for (const std::size_t from : {0UL, 1UL, 17UL, 64UL}) {
      for (const std::size_t to : {0UL, 1UL, 15UL, 63UL, 64UL}) {
        std::vector<std::byte> destination(kSpan, kUntouched);
        prefetch_page(destination.data(), source.data() + from, bytes);
        copy_page(destination.data() + to, source.data() + from, bytes);
        publish_copies();
        for (std::size_t i = 0; i < kSpan; ++i) {
          const bool is_inside = i >= to && i < to + bytes;
          ASSERT_EQ(destination[i], is_inside ? source[from + i - to] : kUntouched)
              << bytes << " bytes from " << from << " to " << to << ", byte " << i;
        }
      }
    }
  }
}

}  // namespace
TEST(PageCopy, ManyCopiesOfAnySizesAndPlaces) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> source(200'000);
    for (std::byte& b : source) b = static_cast<std::byte>(random());
    std::vector<std::byte> destination(200'000, std::byte{0xa5});
    std::vector<std::byte> expected = destination;
    std::vector<PageCopy> copies;
    // Lined up and equal in size most of the time, as pages are; then every way of not being so.
    const std::size_t usual = std::size_t{128} << random() % 6;
    std::size_t at = 0;
    while (true) {
      const bool is_usual = random() % 4 != 0;
      const std::size_t bytes = is_usual ? usual : random() % 5000;
      if (!is_usual) at += random() % 100;
      if (at + bytes > source.size()) break;
      const std::size_t from =
          is_usual ? (random() % (source.size() - bytes)) / 64 * 64 : random() % (source.size() - bytes);
      copies.push_back({destination.data() + at, source.data() + from, bytes});
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += bytes + (is_usual ? (64 - at % 64) % 64 : 0);
    }
    copy_pages(copies);
    publish_copies();
    ASSERT_EQ(destination, expected) << "round " << round;
  }
}

}  // namespace kvt
