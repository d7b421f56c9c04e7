#include "device/kernel_reference.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvt {
namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): kernels know memory by address
std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

std::int64_t slot_of(std::uint64_t slots, std::uint64_t index) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return slots == 0 ? 0 : reinterpret_cast<const std::int32_t*>(slots)[index];
}

// Calls visit(source, destination, bytes, canonical offset, first word) for each piece in canonical order.
template <typename Visit>
void for_each_piece(const CopyArguments& arguments, Visit visit) {
  std::uint64_t linear = 0;
  std::uint64_t word = 0;
  for (std::uint32_t g = 0; g < arguments.group_count; ++g) {
    const CopyGroup& group = arguments.groups[g];
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* fragments = reinterpret_cast<const DeviceFragment*>(group.fragments);
    for (std::uint32_t f = 0; f < group.fragment_count; ++f) {
      const DeviceFragment& fragment = fragments[f];
      for (std::uint64_t pair = 0; pair < group.pair_count; ++pair) {
        const auto from = static_cast<std::uint64_t>(slot_of(group.source_slots, pair * group.slot_step));
        const auto to = static_cast<std::uint64_t>(slot_of(group.destination_slots, pair * group.slot_step));
        for (std::uint64_t piece = 0; piece < fragment.count; ++piece) {
          visit(
              fragment.source + from * fragment.source_slot_stride + piece * fragment.source_piece_stride,
              fragment.destination + to * fragment.destination_slot_stride + piece * fragment.destination_piece_stride,
              fragment.bytes, linear, word);
          linear += fragment.bytes;
          word += (fragment.bytes + 7) / 8;
        }
      }
    }
  }
}

std::uint64_t finalise(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The part of [begin, begin + bytes) that the launch's range covers, as offsets into the piece.
struct Covered {
  std::uint64_t from = 0;
  std::uint64_t bytes = 0;
  std::uint64_t linear = 0;
};

Covered cover(const CopyArguments& arguments, std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t low = std::max<std::uint64_t>(begin, arguments.range_begin);
  const std::uint64_t high = std::min<std::uint64_t>(begin + bytes, arguments.range_end);
  if (low >= high) return {};
  return {low - begin, high - low, arguments.linear + (low - arguments.range_begin)};
}

}  // namespace

void reference_copy(const CopyArguments& arguments) {
  for_each_piece(arguments, [](std::uint64_t from, std::uint64_t to, std::uint64_t bytes, std::uint64_t,
                               std::uint64_t) { std::memcpy(at(to), at(from), bytes); });
}

void reference_copy_summed(const CopyArguments& arguments) {
  std::uint64_t sum = 0;
  for_each_piece(arguments,
                 [&sum](std::uint64_t from, std::uint64_t to, std::uint64_t bytes, std::uint64_t, std::uint64_t index) {
                   std::memcpy(at(to), at(from), bytes);
                   for (std::uint64_t i = 0; i < bytes; i += 8, ++index) {
                     std::uint64_t word = 0;
                     std::memcpy(&word, at(from + i), std::min<std::uint64_t>(8, bytes - i));
                     sum += finalise(word ^ ((index + 1) * 0x9e3779b97f4a7c15));
                   }
                 });
  std::uint64_t before = 0;
  std::memcpy(&before, at(arguments.checksum), sizeof before);
  sum += before;
  std::memcpy(at(arguments.checksum), &sum, sizeof sum);
}

void reference_gather(const CopyArguments& arguments) {
  for_each_piece(arguments,
                 [&](std::uint64_t from, std::uint64_t, std::uint64_t bytes, std::uint64_t linear, std::uint64_t) {
                   const Covered part = cover(arguments, linear, bytes);
                   if (part.bytes == 0) return;
                   std::memcpy(at(part.linear), at(from + part.from), part.bytes);
                 });
}

void reference_scatter(const CopyArguments& arguments) {
  for_each_piece(arguments,
                 [&](std::uint64_t, std::uint64_t to, std::uint64_t bytes, std::uint64_t linear, std::uint64_t) {
                   const Covered part = cover(arguments, linear, bytes);
                   if (part.bytes == 0) return;
                   std::memcpy(at(to + part.from), at(part.linear), part.bytes);
                 });
}

}  // namespace kvt
