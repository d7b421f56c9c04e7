#include "engine/agent_engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <span>
#include <system_error>
#include <utility>

namespace kvt {
namespace {

// How often a device's event is asked for where the device cannot wait for it itself.
constexpr auto kEventInterval = std::chrono::microseconds(10);

const char* const kClosedText = "the agent was closed";

// The process's signals belong to its main thread; faults stay deliverable here, and so does the profiler's.
sigset_t blocked_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&set, signal);
  return set;
}

}  // namespace

AgentEngine::AgentEngine(TransportFactory factory, OpenReply opened, NoticeSink notices)
    : leases_([this] { commands_.notify(); }),
      factory_(std::move(factory)),
      opened_(std::move(opened)),
      sink_(std::move(notices)) {}

Status AgentEngine::start(const std::string& thread_name, TransportFactory factory, OpenReply opened,
                          NoticeSink notices, std::shared_ptr<AgentEngine>* out) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private
  std::shared_ptr<AgentEngine> engine(new AgentEngine(std::move(factory), std::move(opened), std::move(notices)));
  Status status = engine->commands_.open();
  if (!status.is_ok()) return status;
  // A thread inherits the mask, so that no signal can reach it before it could set its own.
  const sigset_t blocked = blocked_signals();
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    engine->thread_ = std::thread([engine] { engine->run(); });
    ::pthread_setname_np(engine->thread_.native_handle(), thread_name.substr(0, 15).c_str());
  } catch (const std::system_error& error) {
    status = Status(StatusCode::kResource, std::string("cannot start the progress thread: ") + error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (status.is_ok()) *out = std::move(engine);
  return status;
}

AgentEngine::~AgentEngine() {
  // The thread itself may hold the last reference.
  if (thread_.joinable()) thread_.detach();
}

bool AgentEngine::wait_closed(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(ended_mutex_);
  if (!ended_condition_.wait_for(lock, limit, [this] { return has_ended_; })) return false;
  if (thread_.joinable()) thread_.join();
  return true;
}

void AgentEngine::run() {
  // Timers fire within a microsecond instead of 50: a paced link is only as exact as this thread's sleep.
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  transport_ = factory_(&open_status_);
  factory_ = nullptr;
  if (transport_ != nullptr) open_status_ = transport_->open();
  if (open_status_.is_ok()) loop_.emplace(transport_.get());
  std::exchange(opened_, nullptr)(open_status_);

  std::vector<Command> commands;
  while (true) {
    commands_.take(&commands);
    for (Command& command : commands) handle(std::move(command));
    const bool has_news = !commands.empty();
    commands.clear();
    bool has_more = false;
    if (loop_) {
      // What was just submitted leaves before the transport is asked for news.
      if (has_news) (void)loop_->post_next();
      transport_->progress();
      poll_connecting();
      poll_ending();
      has_more = loop_->step();
      deliver_notices();
    }
    if (close_deadline_ && may_end()) break;
    if (!has_more) commands_.sleep(loop_ ? transport_->wait_fd() : -1, next_wakeup());
  }
  const CloseReport report = close_transport();
  // Whatever arrived meanwhile is answered too; nothing is pushed after the owner saw the report.
  commands_.take(&commands);
  for (Command& command : commands) handle(std::move(command));
  // What still ran when the transport closed is for its report to say.
  for (const EndInbound& command : std::exchange(ending_, {})) command.reply();
  for (const CloseReply& reply : std::exchange(close_replies_, {})) reply(report);
  sink_ = nullptr;

  const std::lock_guard<std::mutex> lock(ended_mutex_);
  has_ended_ = true;
  ended_condition_.notify_all();
}

void AgentEngine::handle(Command command) {
  std::visit([this](auto& concrete) { handle_one(concrete); }, command);
}

Status AgentEngine::refusal() const {
  if (close_deadline_) return Status(StatusCode::kState, kClosedText);
  return open_status_;
}

void AgentEngine::handle_one(AllocateRegion& command) {
  Region region;
  Status status = refusal();
  if (status.is_ok()) {
    status = command.device < 0 ? transport_->allocate_region(command.size, &region)
                                : transport_->allocate_device_region(command.device, command.size, &region);
  }
  command.reply(status, region);
}

void AgentEngine::handle_one(RegisterRegion& command) {
  Status status = refusal();
  if (status.is_ok()) status = transport_->register_region(command.region);
  command.reply(status, command.region);
}

void AgentEngine::handle_one(GetMetadata& command) {
  std::vector<std::byte> metadata;
  Status status = refusal();
  if (status.is_ok()) status = transport_->metadata(&metadata);
  command.reply(status, std::move(metadata));
}

void AgentEngine::handle_one(AddPeer& command) {
  Status status = refusal();
  if (status.is_ok()) status = transport_->begin_add_peer(command.peer, command.metadata);
  if (!status.is_ok()) {
    command.reply(status, {}, {});
    return;
  }
  transport_->name_peer(command.peer, command.name);
  connecting_.emplace(command.peer, std::move(command.reply));
}

void AgentEngine::handle_one(RemovePeer& command) {
  if (loop_) loop_->remove_peer(command.peer);
  command.reply();
}

void AgentEngine::handle_one(Submission& command) {
  const Status status = refusal();
  if (status.is_ok()) {
    loop_->submit(std::move(command));
    return;
  }
  Notice notice;
  notice.submission = command.id;
  notice.outcome = Outcome::kCancelled;
  notice.finished_at = std::chrono::steady_clock::now();
  notice.error = status;
  std::vector<Notice> notices;
  if (!command.note.empty()) {
    notices.push_back({.kind = NoticeKind::kNote,
                       .submission = command.id,
                       .outcome = Outcome::kCancelled,
                       .posted_at = {},
                       .error = {}});
  }
  notices.push_back(std::move(notice));
  sink_(std::move(notices));
}

void AgentEngine::handle_one(CancelSubmission& command) {
  if (loop_) loop_->cancel(command.submission);
}

void AgentEngine::handle_one(ExpectInbound& command) {
  Status status = refusal();
  if (status.is_ok()) status = transport_->expect_inbound(command.peer, command.ticket, std::move(command.groups));
  command.reply(status);
}

void AgentEngine::handle_one(EndInbound& command) {
  if (!loop_ || transport_ == nullptr || transport_->end_inbound(command.peer, command.ticket)) {
    command.reply();
  } else {
    ending_.push_back(std::move(command));
  }
}

void AgentEngine::poll_ending() {
  std::erase_if(ending_, [this](const EndInbound& command) {
    if (!transport_->end_inbound(command.peer, command.ticket)) return false;
    command.reply();
    return true;
  });
}

void AgentEngine::handle_one(EventsChanged&) {
  if (loop_) loop_->events_changed();
}

void AgentEngine::handle_one(WatchProcess& command) {
  Status status = refusal();
  if (status.is_ok()) status = transport_->watch_process(command.watch, command.metadata);
  command.reply(status);
}

void AgentEngine::handle_one(UnwatchProcess& command) {
  if (loop_) transport_->unwatch_process(command.watch);
}

void AgentEngine::handle_one(FlushInbound& command) {
  Status status = refusal();
  if (status.is_ok()) status = transport_->flush_inbound();
  command.reply(status);
}

void AgentEngine::handle_one(CloseAgent& command) {
  close_replies_.push_back(std::move(command.reply));
  if (close_deadline_) {
    close_deadline_ = std::min(*close_deadline_, command.deadline);
    return;
  }
  close_deadline_ = command.deadline;
  leases_.close();
  for (auto& [peer, reply] : std::exchange(connecting_, {})) {
    reply(Status(StatusCode::kState, kClosedText), {}, {});
    transport_->remove_peer(peer);
  }
  if (loop_) loop_->cancel_unposted(Status(StatusCode::kCancelled, kClosedText));
}

void AgentEngine::poll_connecting() {
  for (auto entry = connecting_.begin(); entry != connecting_.end();) {
    Status error;
    const PeerState state = transport_->poll_peer(entry->first, &error);
    if (state == PeerState::kConnecting) {
      ++entry;
      continue;
    }
    const PeerId peer = entry->first;
    const PeerReply reply = std::move(entry->second);
    entry = connecting_.erase(entry);
    if (state == PeerState::kReady) {
      loop_->add_peer(peer);
      reply(Status::ok(), transport_->peer_regions(peer), transport_->peer_paths(peer));
    } else {
      transport_->remove_peer(peer);
      reply(error, {}, {});
    }
  }
}

void AgentEngine::deliver_notices() {
  std::vector<Notice> notices = loop_->take_notices();
  std::vector<WatchId> ended;
  std::vector<std::string> advice;
  std::vector<InboundNote> notes;
  // Null once it was given up with memory that is still in use.
  if (transport_ != nullptr) {
    transport_->take_ended(&ended);
    transport_->take_advice(&advice);
    transport_->take_notes(&notes);
  }
  for (InboundNote& note : notes) {
    const bool is_soon = note.kind == InboundNote::Kind::kSoon;
    notices.push_back({.kind = is_soon ? NoticeKind::kNoteSoon : NoticeKind::kInboundNote,
                       .submission = note.from,
                       .posted_at = {},
                       .error = {},
                       .note = std::move(note.bytes)});
  }
  for (const WatchId watch : ended) {
    notices.push_back({.kind = NoticeKind::kEnded, .submission = watch, .posted_at = {}, .error = {}});
  }
  for (std::string& text : advice) {
    notices.push_back(
        {.kind = NoticeKind::kAdvice, .posted_at = {}, .error = Status(StatusCode::kCapability, std::move(text))});
  }
  if (!notices.empty()) sink_(std::move(notices));
}

bool AgentEngine::may_end() const {
  if (std::chrono::steady_clock::now() >= *close_deadline_) return true;
  return (!loop_ || (loop_->unfinished() == 0 && transport_->is_at_rest())) && leases_.count() == 0;
}

std::optional<TimePoint> AgentEngine::next_wakeup() const {
  std::optional<TimePoint> at = close_deadline_;
  if (!loop_) return at;
  const TimePoint now = std::chrono::steady_clock::now();
  std::optional<TimePoint> wanted = transport_->next_wakeup(now);
  if (loop_->polls_events() && (!wanted || now + kEventInterval < *wanted)) wanted = now + kEventInterval;
  return wanted && (!at || *wanted < *at) ? wanted : at;
}

CloseReport AgentEngine::close_transport() {
  CloseReport report;
  if (!loop_) {
    transport_.reset();
    return report;
  }
  const std::size_t leases = leases_.count();
  report.outstanding = loop_->unfinished() + leases;
  if (leases > 0) {
    // Someone still reads or writes the regions: the transport is given up with them, mapped and registered.
    (void)transport_.release();
    report.drained = false;
  } else {
    report.drained = transport_->close();
  }
  if (report.drained) report.outstanding = 0;
  loop_->abandon_all(report.drained,
                     Status(StatusCode::kTransport, "the agent was closed before the transfer had ended"));
  deliver_notices();
  loop_.reset();
  transport_.reset();
  return report;
}

}  // namespace kvt
