#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/fragment_table.h"
#include "core/status.h"

namespace kvt {

enum class ContentLayout : std::uint8_t {
  kHeadMajor = 0,   // HND: (head * tokensPerBlock + token) * token_bytes
  kTokenMajor = 1,  // NHD: (token * heads + head) * token_bytes
};

// One layer's part of a view, inside each slot of `pool`.
struct ContentEntry {
  SlotPool pool;
  std::size_t offset = 0;
  std::uint32_t layer = 0;
  std::uint32_t role = 0;
  ContentLayout layout = ContentLayout::kHeadMajor;
  std::uint32_t heads = 0;
  std::uint32_t first_head = 0;  // global index of head 0
  std::size_t token_bytes = 0;   // of one head and one token
};

struct ContentJob {
  std::vector<ContentEntry> entries;
  std::uint32_t tokens_per_block = 0;
  std::uint64_t first_block = 0;     // ordinal of slots[0]
  std::vector<std::int32_t> slots;   // negative: a hole, skipped
  std::uint64_t token_begin = 0;     // prompt tokens [token_begin, token_begin + seeds.size())
  std::vector<std::uint64_t> seeds;  // one per token of that range
};

struct WrongPlace {
  std::size_t entry = 0;
  std::uint32_t head = 0;  // global
  std::uint64_t token = 0;
};

struct ContentCheck {
  std::uint64_t bytes_checked = 0;
  std::uint64_t wrong_bytes = 0;
  std::optional<WrongPlace> first_wrong;  // in order of entry, block, address
};

// The seed of a prompt before its first token.
inline constexpr std::uint64_t kContentSeed = 0x6b767472616e7363;

// seed[i] = mix(seed[i - 1], tokens[i]): equal prefixes give equal seeds.
void chain_token_seeds(std::span<const std::uint32_t> tokens, std::span<std::uint64_t> seeds);

// Geometry that a job must have before it may run: sizes positive, entries inside their slots, slots inside the pools.
Status check_content_job(const ContentJob& job);

// Both take a checked job whose pools are mapped. Words are little endian; a tail shorter than a word takes its low
// bytes.
std::uint64_t fill_content(const ContentJob& job);
ContentCheck verify_content(const ContentJob& job);

}  // namespace kvt
