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
// What a copy moves before another's turn comes.
constexpr std::size_t kTurn = 2 * kLine;
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

bool takes_turns(std::uintptr_t destinations, std::size_t bytes) {
  return kCopiesTakeTurns && bytes >= 2 * kTurn && bytes % kTurn == 0 && destinations % kLine == 0;
}

#if defined(__SSE2__)
namespace {

// Pages copied in turns: while one waits for memory the others go on. More streams than these find no free fill
// buffers.
constexpr std::size_t kStreams = 4;

// All of one size and lined up.
bool can_take_turns(std::span<const PageCopy> copies) {
  const std::size_t bytes = copies.front().bytes;
  return std::all_of(copies.begin(), copies.end(), [bytes](const PageCopy& copy) {
    return copy.bytes == bytes && takes_turns(reinterpret_cast<std::uintptr_t>(copy.destination), bytes);
  });
}

}  // namespace
#endif

void copy_pages(std::span<const PageCopy> copies) {
  const auto prefetch = [copies](std::size_t i) {
    if (i < copies.size()) prefetch_page(copies[i].destination, copies[i].source, copies[i].bytes);
  };
  for (std::size_t i = 0; i < copies.size();) {
#if defined(__SSE2__)
    const std::size_t left = std::min(kStreams, copies.size() - i);
    const std::span<const PageCopy> next = copies.subspan(i, left);
    if (left == kStreams && can_take_turns(next)) {
      for (std::size_t k = 0; k < kStreams; ++k) prefetch(i + kStreams + k);
      for (std::size_t at = 0; at < next.front().bytes; at += kTurn) {
        for (const PageCopy& copy : next) stream_lines(copy.destination + at, copy.source + at, kTurn);
      }
      i += kStreams;
      continue;
    }
#endif
    prefetch(i + 1);
    copy_page(copies[i].destination, copies[i].source, copies[i].bytes);
    i += 1;
  }
}

void publish_copies() {
#if defined(__SSE2__)
  // Streaming stores are the only ones that locks and system calls do not order by themselves.
  _mm_sfence();
#endif
}

}  // namespace kvt
