#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/command.h"
#include "engine/command_queue.h"
#include "engine/memory_leases.h"
#include "engine/transfer_loop.h"
#include "transport/transport.h"

namespace kvt {

// Makes the transport on the progress thread; null with the status set when it cannot.
using TransportFactory = std::function<std::unique_ptr<Transport>(Status*)>;
using OpenReply = std::function<void(const Status&)>;
using NoticeSink = std::function<void(std::vector<Notice>)>;

// Role: one agent's progress thread and the way to it. Every call of the transport happens on that thread.
// Threading: public methods from any thread, none waits for the thread (wait_closed excepted). Replies and notices run
// on
//   the progress thread and must not call wait_closed.
// Ownership: the thread holds the engine alive until it has closed, so a thread that is stuck in the transport at the
// end of
//   the process finds everything it touches.
// Ordering: commands take effect in the order of the calls.
class AgentEngine : public std::enable_shared_from_this<AgentEngine> {
 public:
  // `opened` is the first reply. After a failed opening everything but close is answered with the same status.
  static Status start(const std::string& thread_name, TransportFactory factory, OpenReply opened, NoticeSink notices,
                      std::shared_ptr<AgentEngine>* out);
  ~AgentEngine();
  AgentEngine(const AgentEngine&) = delete;
  AgentEngine& operator=(const AgentEngine&) = delete;

  // Any command; those that come after CloseAgent are answered as closed. Only the first CloseAgent counts; the
  // replies of later ones get its report.
  void push(Command command) { commands_.push(std::move(command)); }

  MemoryLeases& leases() { return leases_; }

  // Waits until the thread has closed the transport and ended. False at the time limit: the thread then goes on alone.
  bool wait_closed(std::chrono::milliseconds limit);

 private:
  AgentEngine(TransportFactory factory, OpenReply opened, NoticeSink notices);

  void run();
  void handle(Command command);
  void handle_one(AllocateRegion& command);
  void handle_one(RegisterRegion& command);
  void handle_one(GetMetadata& command);
  void handle_one(AddPeer& command);
  void handle_one(RemovePeer& command);
  void handle_one(Submission& command);
  void handle_one(CancelSubmission& command);
  void handle_one(ExpectInbound& command);
  void handle_one(EndInbound& command);
  void handle_one(EventsChanged& command);
  void handle_one(WatchProcess& command);
  void handle_one(UnwatchProcess& command);
  void handle_one(FlushInbound& command);
  void handle_one(CloseAgent& command);
  // What to answer a command that cannot run: why opening failed, or that the agent is closing; ok otherwise.
  Status refusal() const;
  void poll_connecting();
  void poll_ending();
  void deliver_notices();
  bool may_end() const;
  std::optional<TimePoint> next_wakeup() const;
  CloseReport close_transport();

  CommandQueue commands_;
  MemoryLeases leases_;

  // Below: the progress thread alone.
  TransportFactory factory_;
  OpenReply opened_;
  NoticeSink sink_;
  Status open_status_;
  std::unique_ptr<Transport> transport_;
  std::optional<TransferLoop> loop_;
  std::unordered_map<PeerId, PeerReply> connecting_;
  std::vector<EndInbound> ending_;
  std::optional<TimePoint> close_deadline_;
  std::vector<CloseReply> close_replies_;

  // Between the progress thread and whoever waits for it.
  std::thread thread_;
  std::mutex ended_mutex_;
  std::condition_variable ended_condition_;
  bool has_ended_ = false;
};

}  // namespace kvt
