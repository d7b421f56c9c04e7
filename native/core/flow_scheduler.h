#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>

namespace kvt {

using FlowId = std::uint64_t;
using ItemId = std::uint64_t;

// Role: decides whose batch is posted next. Flows take turns; inside a flow, items run in the order they came.
// A flow whose head cannot go on now is parked: it costs nothing until it is woken, and nothing behind its head
// overtakes.
class FlowScheduler {
 public:
  void push(FlowId flow, ItemId item);

  // Head of the flow whose turn it is, or nullopt when every flow is parked or empty.
  std::optional<ItemId> head() const;

  // What becomes of the turn that head() named. Each must follow a head() that gave an item.
  void end_turn();     // the head has more to do; the next flow's turn
  void finish_head();  // the head has nothing more to do; the next flow's turn
  void park();         // the head must wait

  // Idempotent; ignores unknown and unparked flows.
  void wake(FlowId flow);

  // Takes out an item wherever it stands. False when it is not here. A parked flow that loses its head is woken.
  bool remove(FlowId flow, ItemId item);

  bool is_empty() const { return flows_.empty(); }

 private:
  enum class FlowState : std::uint8_t { kInRing, kParked };
  struct Flow {
    std::deque<ItemId> items;
    FlowState state = FlowState::kInRing;
    std::list<FlowId>::iterator place;  // valid while kInRing
  };

  void put_last(FlowId id, Flow* flow);

  std::unordered_map<FlowId, Flow> flows_;  // never holds an empty flow
  std::list<FlowId> ring_;
};

}  // namespace kvt
