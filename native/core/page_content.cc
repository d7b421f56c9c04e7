#include "core/page_content.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little, "content words are stored little endian");

constexpr std::uint64_t kMixFactor = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kWordStep = 0xd1342543de82ef95;  // odd: the words of one head and token all differ
constexpr std::uint64_t kTagSeed = 0x243f6a8885a308d3;

// splitmix64's finaliser (Steele, Lea, Flood 2014): each input bit reaches each output bit.
constexpr std::uint64_t finalise(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  return finalise(state ^ ((value + 1) * kMixFactor));
}

std::uint64_t place_tag(std::uint32_t layer, std::uint32_t role, std::uint64_t head) {
  return mix(mix(mix(kTagSeed, layer), role), head);
}

void fill_token(std::byte* at, std::size_t bytes, std::uint64_t base) {
  const std::size_t words = bytes / 8;
  for (std::size_t k = 0; k < words; ++k) {
    const std::uint64_t word = base + k * kWordStep;
    std::memcpy(at + k * 8, &word, 8);
  }
  const std::uint64_t tail = base + words * kWordStep;
  std::memcpy(at + words * 8, &tail, bytes % 8);
}

std::size_t count_wrong_bytes(const std::byte* at, std::size_t bytes, std::uint64_t base) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::uint64_t word = base + (i / 8) * kWordStep;
    wrong += at[i] != static_cast<std::byte>(word >> (8 * (i % 8)));
  }
  return wrong;
}

std::size_t verify_token(const std::byte* at, std::size_t bytes, std::uint64_t base) {
  const std::size_t words = bytes / 8;
  std::uint64_t difference = 0;
  for (std::size_t k = 0; k < words; ++k) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + k * 8, 8);
    difference |= word ^ (base + k * kWordStep);
  }
  if (bytes % 8 != 0) {
    std::uint64_t tail = base + words * kWordStep;
    std::uint64_t actual = tail;
    std::memcpy(&actual, at + words * 8, bytes % 8);
    difference |= tail ^ actual;
  }
  return difference == 0 ? 0 : count_wrong_bytes(at, bytes, base);
}

// Calls visit(entry index, address, global head, token, base word) in order of entry, block, address.
template <typename Visit>
void for_each_token(const ContentJob& job, Visit visit) {
  const std::uint64_t tokens_per_block = job.tokens_per_block;
  const std::uint64_t token_end = job.token_begin + job.seeds.size();
  std::vector<std::uint64_t> tags;
  for (std::size_t e = 0; e < job.entries.size(); ++e) {
    const ContentEntry& entry = job.entries[e];
    tags.clear();
    for (std::uint32_t h = 0; h < entry.heads; ++h) {
      tags.push_back(place_tag(entry.layer, entry.role, std::uint64_t{entry.first_head} + h));
    }
    for (std::size_t b = 0; b < job.slots.size(); ++b) {
      if (job.slots[b] < 0) continue;
      const std::uint64_t block_begin = (job.first_block + b) * tokens_per_block;
      const std::uint64_t begin = std::max(block_begin, job.token_begin);
      const std::uint64_t end = std::min(block_begin + tokens_per_block, token_end);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
      auto* page = reinterpret_cast<std::byte*>(
          entry.pool.base + static_cast<std::size_t>(job.slots[b]) * entry.pool.slot_stride + entry.offset);
      const auto visit_one = [&](std::uint32_t head, std::uint64_t token, std::size_t index) {
        const std::uint64_t seed = job.seeds[token - job.token_begin];
        visit(e, page + index * entry.token_bytes, entry.first_head + head, token, finalise(seed ^ tags[head]));
      };
      if (entry.layout == ContentLayout::kHeadMajor) {
        for (std::uint32_t h = 0; h < entry.heads; ++h) {
          for (std::uint64_t t = begin; t < end; ++t) visit_one(h, t, h * tokens_per_block + (t - block_begin));
        }
      } else {
        for (std::uint64_t t = begin; t < end; ++t) {
          for (std::uint32_t h = 0; h < entry.heads; ++h) visit_one(h, t, (t - block_begin) * entry.heads + h);
        }
      }
    }
  }
}

Status check_entry(const ContentJob& job, std::size_t index) {
  const ContentEntry& entry = job.entries[index];
  const auto fail = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "content entry " + std::to_string(index) + ": " + what);
  };
  if (entry.heads == 0 || entry.token_bytes == 0) return fail("it has no bytes");
  if (entry.pool.slot_count < 1 || entry.pool.slot_bytes > entry.pool.slot_stride) return fail("the pool is malformed");
  std::size_t end = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(entry.heads), entry.token_bytes, &end) ||
      __builtin_mul_overflow(end, static_cast<std::size_t>(job.tokens_per_block), &end) ||
      __builtin_add_overflow(end, entry.offset, &end) || end > entry.pool.slot_bytes) {
    return fail("heads * tokensPerBlock * bytes leave the slot");
  }
  for (const std::int32_t slot : job.slots) {
    if (slot >= entry.pool.slot_count) {
      return fail("slot " + std::to_string(slot) + " is not below " + std::to_string(entry.pool.slot_count));
    }
  }
  return Status::ok();
}

}  // namespace

void chain_token_seeds(std::span<const std::uint32_t> tokens, std::span<std::uint64_t> seeds) {
  std::uint64_t seed = kContentSeed;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    seed = mix(seed, tokens[i]);
    seeds[i] = seed;
  }
}

Status check_content_job(const ContentJob& job) {
  if (job.tokens_per_block == 0) return Status(StatusCode::kInvalidArgument, "tokensPerBlock must be positive");
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 32;
  if (job.first_block >= kLimit || job.token_begin >= kLimit || job.slots.size() >= kLimit ||
      job.seeds.size() >= kLimit) {
    return Status(StatusCode::kInvalidArgument, "block ordinals and token positions must be below 2^32");
  }
  for (std::size_t i = 0; i < job.entries.size(); ++i) {
    Status checked = check_entry(job, i);
    if (!checked.is_ok()) return checked;
  }
  return Status::ok();
}

std::uint64_t fill_content(const ContentJob& job) {
  std::uint64_t bytes = 0;
  for_each_token(job, [&](std::size_t e, std::byte* at, std::uint32_t, std::uint64_t, std::uint64_t base) {
    fill_token(at, job.entries[e].token_bytes, base);
    bytes += job.entries[e].token_bytes;
  });
  return bytes;
}

ContentCheck verify_content(const ContentJob& job) {
  ContentCheck check;
  for_each_token(job,
                 [&](std::size_t e, const std::byte* at, std::uint32_t head, std::uint64_t token, std::uint64_t base) {
                   const std::size_t wrong = verify_token(at, job.entries[e].token_bytes, base);
                   check.bytes_checked += job.entries[e].token_bytes;
                   check.wrong_bytes += wrong;
                   if (wrong != 0 && !check.first_wrong.has_value()) check.first_wrong = WrongPlace{e, head, token};
                 });
  return check;
}

}  // namespace kvt
