#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/fragment_table.h"
#include "core/status.h"
#include "device/kernels/kernel_abi.h"

namespace kvt {

// A fragment table in the kernels' form, and what the host needs to know of it. Addresses may still be translated.
struct CopyTable {
  std::vector<DeviceFragment> fragments;
  std::uint64_t bytes_per_pair = 0;
  std::uint64_t words_per_pair = 0;
  std::uint32_t tiles_per_pair = 0;
  PieceTraits traits;
};

// kResource when the table is too large to be counted in tiles of 32 bits.
Status make_copy_table(const FragmentTable& table, CopyTable* out);

// One group of a launch: a table and its slots, both already where the kernel reads them.
struct CopyPart {
  const CopyTable* table = nullptr;
  std::uint64_t fragments_at = 0;
  std::uint64_t source_slots_at = 0;  // 0: slots are not used on that side
  std::uint64_t destination_slots_at = 0;
  std::uint32_t pair_count = 0;
  std::uint32_t slot_step = 2;  // 2: interleaved pairs
};

// Puts at most kMaxCopyGroups parts into one launch over the whole of their canonical bytes.
// kInvalidArgument: too many parts; kResource: more tiles than 32 bits count.
Status make_copy_arguments(std::span<const CopyPart> parts, CopyArguments* out);

// Narrows a gather or scatter to the canonical bytes [begin, end), so that no tile is looked at in vain.
void restrict_range(std::span<const CopyPart> parts, std::uint64_t begin, std::uint64_t end, CopyArguments* arguments);

}  // namespace kvt
