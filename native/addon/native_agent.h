#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "addon/agent_session.h"
#include "addon/environment.h"
#include "addon/napi_setup.h"
#include "core/bounce_gauges.h"
#include "core/bounce_plan.h"
#include "core/fragment_table.h"
#include "core/note_gauges.h"
#include "engine/agent_engine.h"

namespace kvt {

// Role: the JS face of one engine: checks and converts arguments, keeps the handles that JS knows, turns notices into
// one
//   flat record array per delivery.
// Threading: the JS thread. The progress thread reaches it only through the pump and `link_`.
// Ownership: `dispatch_` keeps the TypeScript agent, and so this object, alive from open() to the end of close().
class NativeAgent final : public Napi::ObjectWrap<NativeAgent> {
 public:
  static Napi::Function define(Napi::Env env);

  // (kind: 'host' | 'nixl', name, linkGbps or NaN, NIXL library or '', NIXL package tree or '', path, device or -1,
  //  blocks or 0, bounce numbers (empty: no arena), dispatch)
  explicit NativeAgent(const Napi::CallbackInfo& info);
  ~NativeAgent() override;

 private:
  // Lives as long as any delivery that may want the agent; null once the agent is gone.
  struct Link {
    NativeAgent* agent = nullptr;
  };
  struct Table {
    PeerId peer = 0;
    std::shared_ptr<const FragmentTable> table;
    MemoryKind kind = MemoryKind::kHost;  // of the source; all its fragments agree
  };
  struct PeerRecord {
    RegionTable regions;
    PeerPaths paths;
  };
  enum class State : std::uint8_t { kNew, kOpen, kClosing };

  Napi::Value open(const Napi::CallbackInfo& info);
  Napi::Value allocate_region(const Napi::CallbackInfo& info);
  Napi::Value register_region(const Napi::CallbackInfo& info);
  Napi::Value metadata(const Napi::CallbackInfo& info);
  Napi::Value add_peer(const Napi::CallbackInfo& info);
  Napi::Value remove_peer(const Napi::CallbackInfo& info);
  Napi::Value explain(const Napi::CallbackInfo& info);
  Napi::Value watch_process(const Napi::CallbackInfo& info);
  Napi::Value flush_inbound(const Napi::CallbackInfo& info);
  void unwatch_process(const Napi::CallbackInfo& info);
  Napi::Value prepare_fragments(const Napi::CallbackInfo& info);
  Napi::Value create_event(const Napi::CallbackInfo& info);
  void signal_event(const Napi::CallbackInfo& info);
  void fail_event(const Napi::CallbackInfo& info);
  void release_event(const Napi::CallbackInfo& info);
  void submit(const Napi::CallbackInfo& info);
  static void read_note(const Napi::CallbackInfo& info, Submission* submission);
  void cancel(const Napi::CallbackInfo& info);
  Napi::Value bounce_stats(const Napi::CallbackInfo& info);
  Napi::Value note_stats(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  void read_into(const Napi::CallbackInfo& info);
  void write(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  void require_open(Napi::Env env) const;
  // A pending promise and the function that brings its settlement to the JS thread.
  class Reply;
  std::shared_ptr<Reply> expect_reply(Napi::Env env);
  // Of host memory: device memory is never touched on the JS thread.
  MemoryLease lease(Napi::Env env, std::uintptr_t address, std::size_t size) const;
  Napi::Value prepare_inbound(const Napi::CallbackInfo& info);
  Napi::Value expect_inbound(const Napi::CallbackInfo& info);
  Napi::Value end_inbound(const Napi::CallbackInfo& info);
  std::shared_ptr<const ReadyEvent> find_event(Napi::Env env, double handle) const;
  MemoryKind check_pool(Napi::Env env, std::size_t fragment, const char* side, const RegionTable& regions,
                        const SlotPool& pool) const;
  // Numbers of a group's record: fragment table, and how many slot numbers are its own.
  static constexpr std::size_t kGroupRecord = 2;
  // Group `index` of a slice; its slots begin at `begin`, which moves past them. Throws where something is wrong, or
  // where its kind of memory is not that of the group before.
  PlanGroup read_group(Napi::Env env, PeerId peer, std::size_t index, const double* record,
                       const Napi::Int32Array& slots, std::size_t* begin, MemoryKind* kind) const;
  // Whether memory of one kind can be written to memory of the other at this peer.
  void check_reachable(Napi::Env env, const PeerRecord& peer, MemoryKind from, MemoryKind to) const;
  void deliver(Napi::Env env, std::vector<Notice>* notices);

  Environment* environment_;
  TransportFactory factory_;
  std::string name_;
  Napi::FunctionReference dispatch_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<AgentSession> session_;
  std::shared_ptr<const BounceGauges> gauges_;  // null: no arena
  std::shared_ptr<NoteGauges> notes_ = std::make_shared<NoteGauges>();
  std::optional<BounceThresholds> bounces_;  // absent: no arena
  bool is_nixl_ = false;
  State state_ = State::kNew;
  std::unordered_map<PeerId, PeerRecord> peers_;
  std::unordered_map<std::uint32_t, Table> tables_;
  std::unordered_map<std::uint32_t, Table> inbound_tables_;  // numbered with tables_
  std::unordered_map<std::uint32_t, std::shared_ptr<HostEvent>> events_;
  std::unordered_set<SubmissionId> live_;  // submitted and not yet settled and drained
  PeerId last_peer_ = 0;
  std::uint32_t last_table_ = 0;
  std::uint32_t last_event_ = 0;
};

}  // namespace kvt
