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

void prefetch_page(const std::byte* source, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kPrefetchedBytes);
  for (std::size_t i = 0; i < end; i += kLine) __builtin_prefetch(source + i);
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

void publish_copies() {
#if defined(__SSE2__)
  // Streaming stores are the only ones that locks and system calls do not order by themselves.
  _mm_sfence();
#endif
}

}  // namespace kvt
