#include "core/page_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvt {
namespace {

constexpr std::size_t kLine = 64;
// The hardware's own prefetcher has caught up after this much of a page.
constexpr std::size_t kPrefetchedBytes = 8 * kLine;
constexpr std::size_t kMemoryPage = 4096;
// More translations than this would push out those in use.
constexpr std::size_t kTranslatedBytes = 16 * kMemoryPage;

#if defined(__SSE2__)
constexpr std::size_t kStreamedFrom = 1024;

// `destination` is aligned to a line, `bytes` a multiple of it.
void stream_lines(std::byte* destination, const std::byte* source, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + i);
    auto* to = reinterpret_cast<__m128i*>(destination + i);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}
#endif

}  // namespace

void prefetch_page(const std::byte* destination, const std::byte* source, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchedBytes);
  for (std::size_t i = 0; i < end; i += kLine) __builtin_prefetch(source + i);
  // One line of each further memory page: for its address translation, which a virtual machine looks up in two
  // dimensions.
  const std::size_t translated = std::min(bytes, kTranslatedBytes);
  for (std::size_t i = kMemoryPage; i < translated; i += kMemoryPage) __builtin_prefetch(source + i);
  for (std::size_t i = 0; i < translated; i += kMemoryPage) __builtin_prefetch(destination + i, 1);
}

void copy_page(std::byte* destination, const std::byte* source, std::size_t bytes) {
#if defined(__SSE2__)
  if (bytes >= kStreamedFrom) {
    const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(destination) % kLine) % kLine;
    std::memcpy(destination, source, head);
    const std::size_t lines = (bytes - head) / kLine * kLine;
    stream_lines(destination + head, source + head, lines);
    std::memcpy(destination + head + lines, source + head + lines, bytes - head - lines);
    return;
  }
#endif
  std::memcpy(destination, source, bytes);
}

void copy_two_pages(std::byte* destination_a, const std::byte* source_a, std::byte* destination_b,
                    const std::byte* source_b, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kTurn = 2 * kLine;
  const auto is_lined_up = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % kLine == 0; };
  if (bytes >= 2 * kTurn && bytes % kTurn == 0 && is_lined_up(destination_a) && is_lined_up(destination_b)) {
    for (std::size_t i = 0; i < bytes; i += kTurn) {
      stream_lines(destination_a + i, source_a + i, kTurn);
      stream_lines(destination_b + i, source_b + i, kTurn);
    }
    return;
  }
#endif
  copy_page(destination_a, source_a, bytes);
  copy_page(destination_b, source_b, bytes);
}

void copy_pages(std::span<const PageCopy> copies) {
  const auto prefetch = [copies](std::size_t i) {
    if (i < copies.size()) prefetch_page(copies[i].destination, copies[i].source, copies[i].bytes);
  };
  for (std::size_t i = 0; i < copies.size();) {
    const PageCopy& first = copies[i];
    prefetch(i + 2);
    if (i + 1 < copies.size() && copies[i + 1].bytes == first.bytes) {
      const PageCopy& second = copies[i + 1];
      prefetch(i + 3);
      copy_two_pages(first.destination, first.source, second.destination, second.source, first.bytes);
      i += 2;
    } else {
      copy_page(first.destination, first.source, first.bytes);
      i += 1;
    }
  }
}

void publish_copies() {
#if defined(__SSE2__)
  // Streaming stores are the only ones that locks and system calls do not order by themselves.
  _mm_sfence();
#endif
}

}  // namespace kvt
