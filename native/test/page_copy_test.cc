#include "core/page_copy.h"

#include <gtest/gtest.h>

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
        prefetch_page(source.data() + from, bytes);
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
}  // namespace kvt
