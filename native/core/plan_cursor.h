#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/fragment_table.h"
#include "core/run.h"

namespace kvt {

// Pairs of slots, source then destination, that one table is applied to. Every slot is below the table's limit.
struct PlanGroup {
  std::shared_ptr<const FragmentTable> table;
  std::vector<std::int32_t> slot_pairs;
  // What the receiver calls this group where it scatters itself (bounce).
  std::uint32_t key = 0;
};

// Role: expands a slice into runs lazily, so that a slice of any size costs memory for one batch only.
// Ordering: groups in order; inside a group fragment by fragment, for each fragment pair by pair, for each pair piece
// by
//   piece. Runs that touch on both sides in that order come out as one.
class PlanCursor {
 public:
  explicit PlanCursor(std::vector<PlanGroup> groups);

  // Appends at most `max_runs` runs of at most `max_bytes` bytes together and returns their bytes; 0 when nothing is
  // left. A piece is cut only when it is larger than `max_bytes` by itself. Both limits must be positive.
  std::size_t take(std::size_t max_runs, std::size_t max_bytes, std::vector<Run>* out);

  // The whole slice, whatever was taken of it; for transports that expand it themselves.
  const std::vector<PlanGroup>& groups() const { return groups_; }
  // Nothing is left from here on.
  void finish();

  std::uint64_t bytes_left() const { return bytes_left_; }
  bool is_done() const { return bytes_left_ == 0; }

 private:
  bool produce(Run* piece);
  bool peek();

  std::vector<PlanGroup> groups_;
  std::size_t group_ = 0;
  std::size_t fragment_ = 0;
  std::size_t pair_ = 0;  // index into slot_pairs, even
  std::size_t piece_ = 0;
  Run current_;  // begun, not handed out; bytes == 0: none
  Run next_;     // the piece after current_; bytes == 0: not looked at yet
  std::uint64_t bytes_left_ = 0;
};

}  // namespace kvt
