#include "addon/native_agent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "addon/agent_reply.h"
#include "addon/arguments.h"
#include "addon/bounce_records.h"
#include "addon/notice_records.h"
#include "addon/transport_choice.h"

namespace kvt {

namespace {

int to_device(Napi::Env env, double value) {
  const std::uint64_t device = to_size(env, value, "device");
  if (device > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw_argument(env, "device must be a GPU's number");
  }
  return static_cast<int>(device);
}

// False: JS is so far behind that this note is dropped. On the progress thread.
bool count_note(NoteGauges* gauges, const Notice& notice) {
  if (notice.kind == NoticeKind::kNote) {
    gauges->add(notice.outcome == Outcome::kTransferred ? NoteGauge::kSent : NoteGauge::kUnsent);
  } else if (notice.kind == NoticeKind::kInboundNote) {
    const bool is_taken = gauges->may_wait();
    gauges->add(is_taken ? NoteGauge::kReceived : NoteGauge::kDropped);
    return is_taken;
  } else if (notice.kind == NoticeKind::kNoteSoon) {
    return gauges->may_wait();
  }
  return true;
}

}  // namespace

Napi::Function NativeAgent::define(Napi::Env env) {
  return DefineClass(env, "NativeAgent",
                     {
                         InstanceMethod<&NativeAgent::open>("open"),
                         InstanceMethod<&NativeAgent::allocate_region>("allocateRegion"),
                         InstanceMethod<&NativeAgent::register_region>("registerRegion"),
                         InstanceMethod<&NativeAgent::metadata>("metadata"),
                         InstanceMethod<&NativeAgent::add_peer>("addPeer"),
                         InstanceMethod<&NativeAgent::remove_peer>("removePeer"),
                         InstanceMethod<&NativeAgent::explain>("explain"),
                         InstanceMethod<&NativeAgent::watch_process>("watchProcess"),
                         InstanceMethod<&NativeAgent::unwatch_process>("unwatchProcess"),
                         InstanceMethod<&NativeAgent::flush_inbound>("flushInbound"),
                         InstanceMethod<&NativeAgent::prepare_fragments>("prepareFragments"),
                         InstanceMethod<&NativeAgent::create_event>("createEvent"),
                         InstanceMethod<&NativeAgent::signal_event>("signalEvent"),
                         InstanceMethod<&NativeAgent::fail_event>("failEvent"),
                         InstanceMethod<&NativeAgent::release_event>("releaseEvent"),
                         InstanceMethod<&NativeAgent::submit>("submit"),
                         InstanceMethod<&NativeAgent::cancel>("cancel"),
                         InstanceMethod<&NativeAgent::read>("read"),
                         InstanceMethod<&NativeAgent::read_into>("readInto"),
                         InstanceMethod<&NativeAgent::write>("write"),
                         InstanceMethod<&NativeAgent::prepare_inbound>("prepareInbound"),
                         InstanceMethod<&NativeAgent::expect_inbound>("expectInbound"),
                         InstanceMethod<&NativeAgent::end_inbound>("endInbound"),
                         InstanceMethod<&NativeAgent::bounce_stats>("bounceStats"),
                         InstanceMethod<&NativeAgent::note_stats>("noteStats"),
                         InstanceMethod<&NativeAgent::close>("close"),
                     });
}

NativeAgent::NativeAgent(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<NativeAgent>(info),
      environment_(environment_of(info.Env())),
      name_(to_text(info, 1, "name")),
      link_(std::make_shared<Link>(Link{this})) {
  if (!info[9].IsFunction()) throw_argument(info.Env(), "dispatch must be a function");
  TransportChoice choice;
  choice.kind = to_text(info, 0, "kind");
  is_nixl_ = choice.kind == "nixl";
  choice.agent_name = name_;
  const double link_gbps = to_number(info, 2, "linkGbps");
  if (!std::isnan(link_gbps)) choice.link_gbps = link_gbps;
  choice.nixl_library = to_text(info, 3, "the NIXL library");
  choice.nixl_package_tree = to_text(info, 4, "the NIXL package tree");
  choice.path = to_text(info, 5, "path");
  const double device = to_number(info, 6, "device");
  if (device != -1) choice.device = to_device(info.Env(), device);
  const double blocks = to_number(info, 7, "copyBlocks");
  if (!(blocks >= 0 && blocks <= kMostCopyBlocks)) {
    throw_argument(info.Env(), "copyBlocks must be a whole number from 1 to " + std::to_string(kMostCopyBlocks));
  }
  choice.copy_blocks = static_cast<unsigned>(to_size(info.Env(), blocks, "copyBlocks"));
  const auto bounce = to_array<Napi::Float64Array>(info, 8, napi_float64_array, "bounce");
  if (bounce.ElementLength() > 0) {
    choice.bounce = read_bounce_options(info.Env(), bounce.Data(), bounce.ElementLength());
    choice.bounce->gauges = std::make_shared<BounceGauges>();
    gauges_ = choice.bounce->gauges;
    bounces_ = thresholds_of(*choice.bounce);
    if (choice.path == "bounce") bounces_->rule = BounceRule::kAlways;
  }
  choice.notes = notes_;
  const Status status = choose_transport(choice, &factory_);
  if (!status.is_ok()) throw_status(info.Env(), status);
  dispatch_ = Napi::Persistent(info[9].As<Napi::Function>());
}

NativeAgent::~NativeAgent() {
  link_->agent = nullptr;
  if (state_ != State::kOpen) return;
  // Dropped without close: nothing waits for it, and the environment joins the thread at its own end.
  session_->engine->push(
      CloseAgent{std::chrono::steady_clock::now() + std::chrono::seconds(1), [](const CloseReport&) {}});
}

void NativeAgent::require_open(Napi::Env env) const {
  switch (state_) {
    case State::kOpen:
      return;
    case State::kNew:
      throw_status(env, Status(StatusCode::kState, "agent " + name_ + " was not opened"));
    case State::kClosing:
      throw_status(env, Status(StatusCode::kState, "agent " + name_ + " was closed"));
  }
}

std::shared_ptr<NativeAgent::Reply> NativeAgent::expect_reply(Napi::Env env) {
  return std::make_shared<Reply>(env, environment_->pump());
}

Napi::Value NativeAgent::open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (state_ != State::kNew) throw_status(env, Status(StatusCode::kState, "agent " + name_ + " was opened before"));
  const auto reply = expect_reply(env);
  const auto opened = [reply](const Status& status) {
    Reply::settle(reply, status, [](Napi::Env e) { return e.Undefined(); });
  };
  const auto notices = [link = link_, pump = environment_->pump(), notes = notes_](std::vector<Notice> batch) {
    std::erase_if(batch, [&notes](const Notice& notice) { return !count_note(notes.get(), notice); });
    if (batch.empty()) return;
    auto shared = std::make_shared<std::vector<Notice>>(std::move(batch));
    pump->post([link, shared](Napi::Env e) {
      if (link->agent != nullptr) link->agent->deliver(e, shared.get());
    });
  };
  auto session = std::make_shared<AgentSession>();
  const Status started = AgentEngine::start("kvt-" + name_, std::move(factory_), opened, notices, &session->engine);
  if (!started.is_ok()) {
    opened(started);
    return reply->promise();
  }
  session_ = std::move(session);
  environment_->add(session_);
  state_ = State::kOpen;
  return reply->promise();
}

Napi::Value NativeAgent::allocate_region(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const std::uint64_t size = to_size(env, to_number(info, 0, "sizeBytes"), "sizeBytes");
  const double device = to_number(info, 1, "device");
  const auto reply = expect_reply(env);
  session_->engine->push(AllocateRegion{.size = size,
                                        .reply =
                                            [reply, session = session_](const Status& status, const Region& region) {
                                              Reply::settle(reply, status, [session, region](Napi::Env e) {
                                                (void)session->regions.add(region);
                                                return Napi::Number::New(e, static_cast<double>(region.base));
                                              });
                                            },
                                        .device = device == -1 ? -1 : to_device(env, device)});
  return reply->promise();
}

Napi::Value NativeAgent::register_region(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  Region wanted;
  wanted.base = to_size(env, to_number(info, 0, "address"), "address");
  wanted.size = to_size(env, to_number(info, 1, "sizeBytes"), "sizeBytes");
  wanted.kind = MemoryKind::kDevice;
  wanted.device = to_device(env, to_number(info, 2, "device"));
  const auto reply = expect_reply(env);
  session_->engine->push(
      RegisterRegion{wanted, [reply, session = session_](const Status& status, const Region& region) {
                       Reply::settle(reply, status, [session, region](Napi::Env e) {
                         (void)session->regions.add(region);
                         return e.Undefined();
                       });
                     }});
  return reply->promise();
}

Napi::Value NativeAgent::metadata(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto reply = expect_reply(env);
  session_->engine->push(GetMetadata{[reply](const Status& status, std::vector<std::byte> bytes) {
    Reply::settle(reply, status, [bytes = std::move(bytes)](Napi::Env e) {
      auto out = Napi::Uint8Array::New(e, bytes.size());
      if (!bytes.empty()) std::memcpy(out.Data(), bytes.data(), bytes.size());
      return out;
    });
  }});
  return reply->promise();
}

Napi::Value NativeAgent::add_peer(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto metadata = to_array<Napi::Uint8Array>(info, 0, napi_uint8_array, "metadata");
  std::string name = to_text(info, 1, "name");
  const PeerId peer = ++last_peer_;
  std::vector<std::byte> bytes(metadata.ByteLength());
  if (!bytes.empty()) std::memcpy(bytes.data(), metadata.Data(), bytes.size());
  const auto reply = expect_reply(env);
  session_->engine->push(AddPeer{
      peer, std::move(bytes),
      [reply, link = link_, peer](const Status& status, const std::vector<Region>& regions, const PeerPaths& paths) {
        Reply::settle(reply, status, [link, peer, regions, paths](Napi::Env e) {
          if (link->agent != nullptr) {
            PeerRecord& known = link->agent->peers_[peer];
            known.paths = paths;
            for (const Region& region : regions) (void)known.regions.add(region);
          }
          return Napi::Number::New(e, peer);
        });
      },
      std::move(name)});
  return reply->promise();
}

Napi::Value NativeAgent::remove_peer(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const auto peer = static_cast<PeerId>(to_size(env, to_number(info, 0, "peer"), "peer"));
  peers_.erase(peer);
  std::erase_if(tables_, [peer](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(inbound_tables_, [peer](const auto& entry) { return entry.second.peer == peer; });
  const auto reply = expect_reply(env);
  session_->engine->push(
      RemovePeer{peer, [reply] { Reply::settle(reply, Status::ok(), [](Napi::Env e) { return e.Undefined(); }); }});
  return reply->promise();
}

MemoryLease NativeAgent::lease(Napi::Env env, std::uintptr_t address, std::size_t size) const {
  require_open(env);
  const Region* region = session_->regions.find(address, size);
  if (region == nullptr) {
    throw_argument(env, std::to_string(size) + " bytes at " + std::to_string(address) +
                            " are not inside a pool of agent " + name_);
  }
  if (region->kind == MemoryKind::kDevice) {
    throw_argument(env,
                   "the address is device memory, which readMemory and writeMemory copy without holding up this "
                   "thread");
  }
  return MemoryLease::of(session_->engine);
}

Napi::Value NativeAgent::read(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::uint64_t address = to_size(env, to_number(info, 0, "address"), "address");
  const std::uint64_t length = to_size(env, to_number(info, 1, "length"), "length");
  const MemoryLease held = lease(env, address, length);
  auto out = Napi::Uint8Array::New(env, length);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
  if (length > 0) std::memcpy(out.Data(), reinterpret_cast<const void*>(address), length);
  return out;
}

void NativeAgent::read_into(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::uint64_t address = to_size(env, to_number(info, 0, "address"), "address");
  auto bytes = to_array<Napi::Uint8Array>(info, 1, napi_uint8_array, "bytes");
  const MemoryLease held = lease(env, address, bytes.ByteLength());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
  if (bytes.ByteLength() > 0) std::memcpy(bytes.Data(), reinterpret_cast<const void*>(address), bytes.ByteLength());
}

void NativeAgent::write(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::uint64_t address = to_size(env, to_number(info, 0, "address"), "address");
  const auto bytes = to_array<Napi::Uint8Array>(info, 1, napi_uint8_array, "bytes");
  const MemoryLease held = lease(env, address, bytes.ByteLength());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): pools are known by address
  if (bytes.ByteLength() > 0) std::memcpy(reinterpret_cast<void*>(address), bytes.Data(), bytes.ByteLength());
}

Napi::Value NativeAgent::create_event(const Napi::CallbackInfo& info) {
  require_open(info.Env());
  const std::uint32_t handle = ++last_event_;
  events_.emplace(handle, std::make_shared<HostEvent>());
  return Napi::Number::New(info.Env(), handle);
}

void NativeAgent::signal_event(const Napi::CallbackInfo& info) {
  const auto event = events_.find(static_cast<std::uint32_t>(to_number(info, 0, "event")));
  if (event == events_.end() || state_ != State::kOpen) return;
  event->second->signal();
  session_->engine->push(EventsChanged{});
}

void NativeAgent::fail_event(const Napi::CallbackInfo& info) {
  const auto event = events_.find(static_cast<std::uint32_t>(to_number(info, 0, "event")));
  std::string message = to_text(info, 1, "message");
  if (event == events_.end() || state_ != State::kOpen) return;
  event->second->fail(std::move(message));
  session_->engine->push(EventsChanged{});
}

void NativeAgent::release_event(const Napi::CallbackInfo& info) {
  const auto event = events_.find(static_cast<std::uint32_t>(to_number(info, 0, "event")));
  if (event == events_.end()) return;
  const bool is_lost = event->second->state() == EventState::kPending;
  // Nobody is left who could settle it, and a submission must not wait for ever.
  if (is_lost) event->second->fail("the event was dropped without being signalled");
  events_.erase(event);
  if (is_lost && state_ == State::kOpen) session_->engine->push(EventsChanged{});
}

void NativeAgent::cancel(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto id = static_cast<SubmissionId>(to_integer(env, to_number(info, 0, "submission"), "submission"));
  if (state_ != State::kOpen || !live_.contains(id)) return;
  session_->engine->push(CancelSubmission{id});
}

void NativeAgent::deliver(Napi::Env env, std::vector<Notice>* notices) {
  for (const Notice& notice : *notices) {
    const bool is_of_submission = notice.kind == NoticeKind::kCompletion || notice.kind == NoticeKind::kDrained;
    if (is_of_submission && notice.drained) live_.erase(notice.submission);
    if (notice.kind == NoticeKind::kInboundNote || notice.kind == NoticeKind::kNoteSoon) notes_->taken();
  }
  const NoticeRecords records = to_records(env, *notices);
  dispatch_.Call({records.numbers, records.messages});
}

Napi::Value NativeAgent::close(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  require_open(env);
  const double deadline_ms = to_number(info, 0, "deadlineMs");
  // Beyond this a deadline is no deadline, and the clock's own range ends.
  constexpr double kLongestMs = 1e12;
  if (!(deadline_ms >= 0)) throw_argument(env, "deadlineMs must be a number from 0 on");
  const auto limit = std::chrono::microseconds(static_cast<std::int64_t>(std::min(deadline_ms, kLongestMs) * 1000));
  state_ = State::kClosing;
  // At once, not when the progress thread gets there: nothing that JS starts from now on may use the memory.
  session_->engine->leases().close();
  const auto reply = expect_reply(env);
  session_->engine->push(
      CloseAgent{std::chrono::steady_clock::now() + limit,
                 [reply, link = link_, environment = environment_, session = session_](const CloseReport& report) {
                   Reply::settle(reply, Status::ok(), [link, environment, session, report](Napi::Env e) {
                     // The thread has nothing left to do but to end.
                     (void)session->engine->wait_closed(std::chrono::milliseconds(100));
                     environment->remove(session.get());
                     if (link->agent != nullptr) {
                       link->agent->dispatch_.Reset();
                       link->agent->peers_.clear();
                       link->agent->tables_.clear();
                       link->agent->inbound_tables_.clear();
                       link->agent->events_.clear();
                       link->agent->live_.clear();
                     }
                     const Napi::Object out = Napi::Object::New(e);
                     out.Set("drained", Napi::Boolean::New(e, report.drained));
                     out.Set("outstanding", Napi::Number::New(e, static_cast<double>(report.outstanding)));
                     return out;
                   });
                 }});
  return reply->promise();
}

}  // namespace kvt
