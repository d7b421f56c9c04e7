#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "core/plan_cursor.h"
#include "device/copy_plan.h"

namespace kvt {

// A slice over two flat memories whose addresses begin at 0, so that it can be laid over host and device memory alike.
struct RandomPlan {
  struct Group {
    std::vector<Fragment> fragments;
    std::vector<std::int32_t> slot_pairs;
  };
  std::vector<Group> groups;
  std::size_t source_bytes = 0;
  std::size_t destination_bytes = 0;
};

// What a generated plan may contain.
struct PlanShape {
  std::size_t max_groups = 3;
  std::size_t max_fragments = 6;
  std::size_t max_pairs = 12;
  std::size_t max_piece_bytes = 20'000;
  std::size_t max_count = 9;
  std::size_t alignment = 1;  // of every address and size
};

class PlanGenerator {
 public:
  PlanGenerator(std::uint32_t seed, const PlanShape& shape) : random_(seed), shape_(shape) {}

  RandomPlan next() {
    RandomPlan plan;
    const std::size_t groups = pick(1, shape_.max_groups);
    for (std::size_t g = 0; g < groups; ++g) plan.groups.push_back(group(&plan));
    return plan;
  }

  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }

 private:
  std::size_t aligned(std::size_t bytes) const { return bytes / shape_.alignment * shape_.alignment; }

  // Mostly pieces around the sizes where the kernels change their way, some of any size.
  std::size_t piece_bytes() {
    static constexpr std::size_t kInteresting[] = {1,   2,    8,    15,   16,   17,   64,  255,
                                                   256, 1024, 4080, 4095, 4096, 4097, 8192};
    std::size_t bytes =
        pick(0, 1) == 0 ? kInteresting[pick(0, std::size(kInteresting) - 1)] : pick(1, shape_.max_piece_bytes);
    bytes = std::min(bytes, shape_.max_piece_bytes);
    return std::max(aligned(bytes), shape_.alignment);
  }

  // Lays the fragments of one side into a slot in a random order and returns the slot's bytes.
  std::size_t lay_out(std::vector<Fragment>* fragments, std::size_t Fragment::*offset, std::size_t Fragment::*stride) {
    std::vector<std::size_t> order(fragments->size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    std::size_t at = 0;
    for (const std::size_t i : order) {
      Fragment& fragment = (*fragments)[i];
      at += aligned(pick(0, 2) == 0 ? pick(0, 100) : 0);
      fragment.*offset = at;
      fragment.*stride = fragment.bytes + aligned(pick(0, 1) == 0 ? pick(0, 300) : 0);
      at += fragment.*stride * (fragment.count - 1) + fragment.bytes;
    }
    return at;
  }

  SlotPool pool(std::size_t slot_bytes, std::int32_t slots, std::size_t* memory) {
    SlotPool pool;
    pool.base = *memory + aligned(pick(0, 64));
    pool.slot_bytes = slot_bytes;
    pool.slot_stride = slot_bytes + aligned(pick(0, 1) == 0 ? pick(0, 200) : 0);
    pool.slot_count = slots;
    *memory = pool.base + pool.slot_stride * static_cast<std::size_t>(slots);
    return pool;
  }

  RandomPlan::Group group(RandomPlan* plan) {
    RandomPlan::Group made;
    made.fragments.resize(pick(1, shape_.max_fragments));
    for (Fragment& fragment : made.fragments) {
      fragment.bytes = piece_bytes();
      fragment.count = pick(0, 1) == 0 ? 1 : pick(1, shape_.max_count);
    }
    const std::size_t source_slot = lay_out(&made.fragments, &Fragment::source_offset, &Fragment::source_stride);
    const std::size_t destination_slot =
        lay_out(&made.fragments, &Fragment::destination_offset, &Fragment::destination_stride);
    const auto pairs = pick(0, shape_.max_pairs);
    const auto slots = static_cast<std::int32_t>(pairs + pick(1, 4));
    const SlotPool source = pool(source_slot, slots, &plan->source_bytes);
    const SlotPool destination = pool(destination_slot, slots, &plan->destination_bytes);
    for (Fragment& fragment : made.fragments) {
      fragment.source = source;
      fragment.destination = destination;
    }
    std::vector<std::int32_t> from(static_cast<std::size_t>(slots));
    std::iota(from.begin(), from.end(), 0);
    std::vector<std::int32_t> to = from;
    std::shuffle(from.begin(), from.end(), random_);
    std::shuffle(to.begin(), to.end(), random_);
    for (std::size_t i = 0; i < pairs; ++i) {
      made.slot_pairs.push_back(from[i]);
      made.slot_pairs.push_back(to[i]);
    }
    return made;
  }

  std::mt19937 random_;
  PlanShape shape_;
};

// A plan laid over two memories: fragment tables with real addresses.
struct PlacedPlan {
  std::vector<PlanGroup> groups;
  std::vector<CopyTable> tables;

  static PlacedPlan place(const RandomPlan& plan, std::uintptr_t source, std::uintptr_t destination) {
    PlacedPlan placed;
    for (const RandomPlan::Group& group : plan.groups) {
      std::vector<Fragment> fragments = group.fragments;
      for (Fragment& fragment : fragments) {
        fragment.source.base += source;
        fragment.destination.base += destination;
      }
      auto table = std::make_shared<FragmentTable>();
      if (!FragmentTable::create(fragments, table.get()).is_ok()) std::abort();
      CopyTable copy_table;
      if (!make_copy_table(*table, &copy_table).is_ok()) std::abort();
      placed.groups.push_back({table, group.slot_pairs});
      placed.tables.push_back(std::move(copy_table));
    }
    return placed;
  }

  // Parts whose tables and slots are read where the host has them.
  std::vector<CopyPart> parts() const {
    std::vector<CopyPart> parts;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto slots = reinterpret_cast<std::uintptr_t>(groups[g].slot_pairs.data());
      parts.push_back({.table = &tables[g],
                       .fragments_at = reinterpret_cast<std::uintptr_t>(tables[g].fragments.data()),
                       .source_slots_at = slots,
                       .destination_slots_at = slots + sizeof(std::int32_t),
                       .pair_count = static_cast<std::uint32_t>(groups[g].slot_pairs.size() / 2)});
    }
    return parts;
  }
};

}  // namespace kvt
