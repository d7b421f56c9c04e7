#pragma once

// Writers and readers of several agents against each other under virtual time: frames are lost, doubled, delayed and
// reordered, writes fail and land late, transfers and receives are cancelled, agents vanish. Real bytes move; who holds
// which part of an arena, and who may touch a page, is kept apart from the code under test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bounce_parties.h"

namespace kvt::test {

using namespace std::chrono_literals;

class Simulation {
 public:
  Simulation(std::uint32_t seed, Faults faults, int agents, int tickets) : random_(seed), faults_(faults), seed_(seed) {
    for (int i = 0; i < agents; ++i) agents_.push_back(std::make_unique<Agent>(&random_));
    for (std::size_t a = 0; a < agents_.size(); ++a) {
      for (std::size_t b = 0; b < agents_.size(); ++b) {
        if (a == b) continue;
        agents_[a]->writer.add_peer(peer_id(b), kMaxChunk, agents_[b]->arena.size());
        agents_[a]->reader.add_peer(peer_id(b));
        channels_[{a, b}] = now_;
      }
    }
    for (int i = 0; i < tickets; ++i) add_ticket();
    if (chance(faults_.vanish)) later(random_() % 3000, [this] { vanish(random_() % agents_.size()); });
  }

  void run() {
    int events = 0;
    while (!events_.empty() && violation_.empty()) {
      ASSERT_LT(++events, 400000) << "seed " << seed_ << " does not come to rest";
      now_ = std::max(now_, events_.begin()->first);
      const auto act = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      act();
      pump();
      if (events_.empty()) wake_for_deadline();
    }
    ASSERT_EQ(violation_, "") << "seed " << seed_;
  }

  // Everybody goes; then nothing may be left anywhere.
  void finish(bool expect_clean) {
    for (auto& [id, slice] : slices_) {
      ASSERT_TRUE(slice.ended) << "seed " << seed_ << ": slice " << id << " has no outcome";
      if (expect_clean) {
        ASSERT_EQ(slice.outcome, BounceOutcome::kTransferred) << "seed " << seed_ << ": " << slice.error;
      }
    }
    if (!expect_clean) {
      for (std::size_t a = 0; a < agents_.size(); ++a) {
        for (std::size_t b = 0; b < agents_.size(); ++b) {
          if (a != b) part(a, b, false);
        }
      }
      pump();
      run();
      // However long it takes, nothing but a proof gives a region back.
      now_ += 1h;
      for (auto& agent : agents_) agent->reader.step(now_);
      pump();
      for (std::size_t a = 0; a < agents_.size(); ++a) {
        lost_ += agents_[a]->reader.lost_bytes();
        for (std::size_t b = 0; b < agents_.size(); ++b) {
          if (a != b) agents_[a]->reader.prove_end(peer_id(b), now_);
        }
      }
      run();
    }
    for (auto& [key, ticket] : tickets_) end_ticket(key.first, key.second);
    pump();
    run();
    for (std::size_t a = 0; a < agents_.size(); ++a) {
      Agent& agent = *agents_[a];
      ASSERT_TRUE(agent.writer.is_idle()) << "seed " << seed_ << " agent " << a;
      ASSERT_TRUE(agent.reader.is_idle()) << "seed " << seed_ << " agent " << a;
      ASSERT_EQ(agent.credits.arena().used(), 0U) << "seed " << seed_ << ": the arena of agent " << a << " leaks";
    }
    for (const auto& [key, ticket] : tickets_) {
      ASSERT_TRUE(ticket.ended) << "seed " << seed_;
      for (const std::uint8_t byte : ticket.world->destination()) {
        ASSERT_EQ(byte, 0xdd) << "seed " << seed_ << ": a page was touched after its receive was ended";
      }
    }
    ASSERT_EQ(violation_, "") << "seed " << seed_;
  }

  std::size_t transferred() const {
    std::size_t count = 0;
    for (const auto& [id, slice] : slices_) count += slice.outcome == BounceOutcome::kTransferred ? 1 : 0;
    return count;
  }
  std::size_t slice_count() const { return slices_.size(); }
  std::uint64_t quarantined() const {
    std::uint64_t count = 0;
    for (const auto& agent : agents_) count += agent->reader.counters().quarantined;
    return count;
  }
  // Of arenas, under regions of writers that were gone at the end, without proof.
  std::uint64_t lost() const { return lost_; }
  std::uint64_t drained_late() const { return drained_late_; }
  // Slices whose pages were free before they ended.
  std::uint64_t released() const { return released_; }

 private:
  using Hold = bounce::Hold;
  using Agent = bounce::Agent;
  using Ticket = bounce::Ticket;
  using Slice = bounce::Slice;

  static BouncePeer peer_id(std::size_t agent) { return static_cast<BouncePeer>(100 + agent); }
  static std::size_t agent_of(BouncePeer peer) { return peer - 100; }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  void later(std::uint64_t us, std::function<void()> act) {
    events_.emplace(now_ + std::chrono::microseconds(us), std::move(act));
  }
  // What an agent does itself waits while it is stopped.
  void when_awake(std::size_t agent, std::uint64_t us, std::function<void()> act) {
    later(us, [this, agent, act = std::move(act)]() mutable {
      const auto left = agents_[agent]->stopped_until - now_;
      if (left <= BounceTime::duration::zero()) return act();
      when_awake(
          agent,
          static_cast<std::uint64_t>(
              std::chrono::microseconds(1us + std::chrono::duration_cast<std::chrono::microseconds>(left)).count()),
          std::move(act));
    });
  }
  void violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  std::uint64_t hold(std::size_t agent, std::uint64_t begin, std::uint64_t bytes, const char* what) {
    Agent& at = *agents_[agent];
    if (begin + bytes > at.arena.size()) violate(std::string(what) + " leaves the arena");
    for (const auto& [id, other] : at.holds) {
      if (begin < other.end && other.begin < begin + bytes) {
        violate(std::string(what) + " in a region that is held by " + other.what);
      }
    }
    at.holds.emplace(++last_hold_, Hold{begin, begin + bytes, what});
    return last_hold_;
  }
  void let_go(std::size_t agent, std::uint64_t id) { agents_[agent]->holds.erase(id); }

  void add_ticket() {
    const std::uint64_t number = tickets_.size() + 1;
    const std::size_t writer = random_() % agents_.size();
    const std::size_t reader = (writer + 1 + random_() % (agents_.size() - 1)) % agents_.size();
    Ticket ticket;
    ticket.world = std::make_unique<World>(&random_, kSlots);
    ticket.reader = reader;
    const std::pair<std::size_t, std::uint64_t> key{writer, number};
    // All slices together: each destination slot of a group once.
    std::vector<std::vector<PlanGroup>> slices;
    std::map<std::uint32_t, InboundGroup> inbound;
    const std::size_t slice_count = 1 + random_() % 3;
    for (std::uint32_t s = 0; s < slice_count; ++s) {
      std::vector<PlanGroup> groups = ticket.world->random_slice(&random_, 1 + random_() % 3, kSlots);
      for (PlanGroup& group : groups) {
        group.key += 100 * s;
        InboundGroup& known = inbound[group.key];
        known.key = group.key;
        known.table = group.table;
        for (std::size_t i = 1; i < group.slot_pairs.size(); i += 2) known.slots.push_back(group.slot_pairs[i]);
      }
      slices.push_back(std::move(groups));
    }
    std::vector<InboundGroup> groups;
    for (auto& [id, group] : inbound) groups.push_back(group);
    tickets_.emplace(key, std::move(ticket));
    const std::uint64_t start = random_() % 2000;
    // A WANT may arrive shortly before its ticket is known.
    const std::uint64_t registers = chance(0.2) ? start + random_() % 500 : start;
    later(registers, [this, key, groups, writer, reader] {
      if (agents_[reader]->is_gone || tickets_.at(key).ending) return;
      const Status status = agents_[reader]->reader.expect(peer_id(writer), key.second, groups);
      if (!status.is_ok() && status.code() != StatusCode::kState) violate(status.message());
    });
    for (auto& slice_groups : slices) {
      const BounceSlice id = ++last_slice_;
      slices_.emplace(id, Slice{.writer = writer, .ticket = key, .groups = slice_groups, .error = ""});
      later(start + random_() % 1500, [this, id] { submit(id); });
      if (chance(faults_.cancel_slice)) {
        later(start + random_() % 4000, [this, id] {
          if (!agents_[slices_.at(id).writer]->is_gone) agents_[slices_.at(id).writer]->writer.cancel(id, now_);
        });
      }
    }
    if (chance(faults_.end_early)) {
      later(start + random_() % 4000, [this, key] { end_ticket(key.first, key.second); });
    }
  }

  void submit(BounceSlice id) {
    Slice& slice = slices_.at(id);
    Agent& agent = *agents_[slice.writer];
    const BouncePeer to = peer_id(tickets_.at(slice.ticket).reader);
    if (agent.is_gone || !agent.writer.has_peer(to)) {
      slice.ended = slice.drained = true;
      slice.outcome = BounceOutcome::kFailed;
      return;
    }
    agent.writer.submit(id, to, slice.ticket.second, split_slice(slice.groups), now_);
  }

  void end_ticket(std::size_t writer, std::uint64_t number) {
    Ticket& ticket = tickets_.at({writer, number});
    if (ticket.ending) return;
    ticket.ending = true;
    agents_[ticket.reader]->reader.end(peer_id(writer), number, now_);
  }

  // `from` learns that `gone` is gone.
  void part(std::size_t from, std::size_t gone, bool is_proven) {
    agents_[from]->writer.remove_peer(peer_id(gone), now_);
    agents_[from]->reader.remove_peer(peer_id(gone), is_proven, now_);
  }

  void vanish(std::size_t gone) {
    agents_[gone]->is_gone = true;
    const bool is_stopped = chance(0.5);
    if (is_stopped) agents_[gone]->stopped_until = now_ + std::chrono::microseconds(random_() % 5'000'000);
    for (std::size_t other = 0; other < agents_.size(); ++other) {
      if (other == gone) continue;
      channels_.erase({gone, other});
      channels_.erase({other, gone});
      // Its writes in flight land within 250 ms, or, where it was only stopped, whenever it goes on. That is over
      // before it is proven, if ever.
      const bool is_proven = !is_stopped && chance(0.5);
      later(is_proven ? 260000 : random_() % 1000, [this, other, gone, is_proven] { part(other, gone, is_proven); });
      if (!is_proven && chance(0.5)) {
        later(10'000'000, [this, other, gone] { agents_[other]->reader.prove_end(peer_id(gone), now_); });
      }
    }
    // What it had to tell is lost with it.
    for (auto& [id, slice] : slices_) {
      if (slice.writer == gone && !slice.ended) {
        slice.ended = slice.drained = true;
        slice.outcome = BounceOutcome::kFailed;
      }
    }
    for (std::size_t other = 0; other < agents_.size(); ++other) {
      if (other != gone) part(gone, other, true);
    }
  }

  void wake_for_deadline() {
    std::optional<BounceTime> next;
    for (const auto& agent : agents_) {
      for (const auto& at : {agent->writer.next_deadline(), agent->reader.next_deadline()}) {
        if (at && (!next || *at < *next)) next = at;
      }
    }
    if (next) events_.emplace(std::max(*next, now_), [] {});
  }

  void pump() {
    for (int round = 0; round < 100; ++round) {
      bool any = false;
      for (std::size_t a = 0; a < agents_.size(); ++a) {
        Agent& agent = *agents_[a];
        agent.writer.step(now_);
        agent.reader.step(now_);
        std::vector<BounceWriterAction> writes;
        agent.writer.take_actions(&writes);
        for (BounceWriterAction& action : writes) std::visit([&](auto& one) { act(a, one); }, action);
        std::vector<BounceReaderAction> reads;
        agent.reader.take_actions(&reads);
        for (BounceReaderAction& action : reads) std::visit([&](auto& one) { act(a, one); }, action);
        any = any || !writes.empty() || !reads.empty();
      }
      if (!any) return;
    }
    violate("the two sides never stop talking");
  }

  void act(std::size_t from, SendBounceFrame& send) {
    const std::size_t to = agent_of(send.peer);
    BounceFrame frame;
    if (!decode_bounce_frame(send.frame, &frame).is_ok()) return violate("sent a frame that cannot be read");
    if (frame.type == BounceFrameType::kGrant) {
      // Held by nobody at this moment, or the write of one would meet another's.
      for (const GrantedChunk& granted : frame.grants) {
        let_go(from, hold(from, granted.offset, granted.bytes, "a grant"));
        agents_[from]->granted[granted.grant] = {send.peer, frame.request};
      }
    }
    const auto channel = channels_.find({from, to});
    if (channel == channels_.end() || chance(faults_.lose)) return;
    const int copies = chance(faults_.twice) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      BounceTime at = now_ + std::chrono::microseconds(5 + random_() % 40);
      if (faults_.reorders && chance(0.2)) at += std::chrono::microseconds(random_() % 2000);
      if (!faults_.reorders) at = channel->second = std::max(at, channel->second + 1us);
      events_.emplace(at, [this, from, to, bytes = send.frame] {
        if (!channels_.contains({from, to})) return;
        BounceFrame got;
        ASSERT_TRUE(decode_bounce_frame(bytes, &got).is_ok());
        const bool is_for_reader = got.type == BounceFrameType::kWant || got.type == BounceFrameType::kData ||
                                   got.type == BounceFrameType::kCancel;
        if (is_for_reader) {
          agents_[to]->reader.on_frame(peer_id(from), got, now_);
        } else {
          agents_[to]->writer.on_frame(peer_id(from), got, now_);
        }
      });
    }
  }

  void act(std::size_t a, GatherBounceChunk& gather) {
    const std::uint64_t held = hold(a, gather.staging, gather.end - gather.begin, "a gather");
    const std::pair<BounceRequest, std::uint32_t> key{gather.id.request, gather.id.chunk};
    agents_[a]->gathers[key] = held;
    slice_of_[{a, gather.id.request}] = gather.slice;
    later(1 + random_() % 200, [this, a, key, held, gather] {
      const auto running = agents_[a]->gathers.find(key);
      if (running == agents_[a]->gathers.end()) return;  // dropped
      agents_[a]->gathers.erase(running);
      // Of a slice that failed, what cannot be stopped is read in vain. Its bytes would show if they were sent.
      const Slice& slice = slices_.at(gather.slice);
      if (slice.drained && slice.outcome == BounceOutcome::kTransferred && !agents_[a]->is_gone)
        violate("a source page was read after the slice had drained");
      const bool fails = chance(faults_.fail_gather);
      if (!fails) {
        copy_pieces(gather.plan->sources, PackedSide::kSource, gather.begin, gather.end,
                    agents_[a]->arena.data() + gather.staging);
      }
      let_go(a, held);
      agents_[a]->writer.gathered(gather.id, fails ? Status(StatusCode::kInternal, "no gather") : Status::ok(), now_);
    });
  }

  void act(std::size_t a, DropBounceGather& drop) {
    const auto running = agents_[a]->gathers.find({drop.id.request, drop.id.chunk});
    if (running == agents_[a]->gathers.end() || chance(0.5)) return;  // too late to stop it
    let_go(a, running->second);
    agents_[a]->gathers.erase(running);
    agents_[a]->writer.gathered(drop.id, Status(StatusCode::kCancelled, "dropped"), now_);
  }

  // From here on the pages are others', who write into them.
  void act(std::size_t a, BounceSourceReleased& released) {
    Slice& slice = slices_.at(released.slice);
    if (agents_[a]->is_gone) return;
    if (slice.released || slice.ended) return violate("a source was released twice, or after its slice had ended");
    slice.released = true;
    ++released_;
    const bool is_used = std::any_of(slices_.begin(), slices_.end(), [&slice](const auto& entry) {
      const Slice& other = entry.second;
      return other.ticket == slice.ticket && !other.released && !other.ended;
    });
    if (!is_used) std::ranges::fill(tickets_.at(slice.ticket).world->source(), std::uint8_t{0x5a});
  }

  void copy_pieces(std::span<const PackedGroup> groups, PackedSide side, std::uint64_t begin, std::uint64_t end,
                   std::uint8_t* linear) {
    PackedCursor cursor(groups, side, begin, end);
    std::vector<PackedCursor::Piece> pieces;
    while (cursor.take(16, 4096, &pieces) > 0) {
    }
    for (const PackedCursor::Piece& piece : pieces) {
      auto* page = reinterpret_cast<std::uint8_t*>(piece.page);
      if (side == PackedSide::kSource) {
        std::memcpy(linear + piece.offset, page, piece.bytes);
      } else {
        std::memcpy(page, linear + piece.offset, piece.bytes);
      }
    }
  }

  void act(std::size_t a, WriteBounceChunk& write) {
    const std::size_t to = agent_of(write.peer);
    const std::uint64_t ours = hold(a, write.staging, write.bytes, "the source of a write");
    const std::uint64_t theirs = hold(to, write.remote_offset, write.bytes, "a write");
    const auto land = [this, a, to, write] {
      std::memcpy(agents_[to]->arena.data() + write.remote_offset, agents_[a]->arena.data() + write.staging,
                  write.bytes);
    };
    const bool fails = chance(faults_.fail_write);
    const std::uint64_t takes = 10 + random_() % 400;
    if (!fails) {
      when_awake(a, takes, [this, a, to, ours, theirs, write, land] {
        land();
        let_go(a, ours);
        let_go(to, theirs);
        agents_[a]->writer.wrote(write.id, Status::ok(), false, now_);
      });
      return;
    }
    const bool lands_late = chance(0.6);
    later(takes, [this, a, to, ours, theirs, write, lands_late, land] {
      if (!lands_late) {
        let_go(a, ours);
        let_go(to, theirs);
      } else {
        later(random_() % 200000, [this, a, to, ours, theirs, write, land] {
          land();
          let_go(a, ours);
          let_go(to, theirs);
          // The proof comes a while after.
          later(random_() % 50000, [this, a, write] { agents_[a]->writer.write_drained(write.id); });
        });
      }
      agents_[a]->writer.wrote(write.id, Status(StatusCode::kTransport, "broken"), lands_late, now_);
    });
  }

  void act(std::size_t a, ScatterBounceChunk& scatter) {
    const std::uint64_t held = hold(a, scatter.offset, scatter.end - scatter.begin, "a scatter");
    agents_[a]->scatters[scatter.grant] = held;
    later(1 + random_() % 200, [this, a, held, scatter] {
      const auto running = agents_[a]->scatters.find(scatter.grant);
      if (running == agents_[a]->scatters.end()) return;
      agents_[a]->scatters.erase(running);
      check_scatter(a, scatter.grant);
      const bool fails = chance(faults_.fail_scatter);
      if (!fails) {
        copy_pieces(*scatter.destinations, PackedSide::kDestination, scatter.begin, scatter.end,
                    agents_[a]->arena.data() + scatter.offset);
      }
      let_go(a, held);
      agents_[a]->reader.scattered(scatter.grant, !fails, now_);
    });
  }

  // Whoever wrote it must not have been told yet that nothing of its slice is scattered any more.
  void check_scatter(std::size_t a, BounceGrant grant) {
    const auto& [peer, request] = agents_[a]->granted.at(grant);
    const auto slice = slice_of_.find({agent_of(peer), request});
    if (slice == slice_of_.end() || agents_[agent_of(peer)]->is_gone) return;
    if (slices_.at(slice->second).drained &&
        agents_[a]->reader.is_scattering(peer, slices_.at(slice->second).ticket.second)) {
      if (slices_.at(slice->second).outcome != BounceOutcome::kTransferred)
        violate("a scatter ran for a slice that had drained");
    }
  }

  void act(std::size_t a, DropBounceScatter& drop) {
    const auto running = agents_[a]->scatters.find(drop.grant);
    if (running == agents_[a]->scatters.end() || chance(0.5)) return;
    let_go(a, running->second);
    agents_[a]->scatters.erase(running);
    agents_[a]->reader.scattered(drop.grant, false, now_);
  }

  void act(std::size_t, BounceSliceEnded& ended) {
    Slice& slice = slices_.at(ended.slice);
    if (slice.ended && !agents_[slice.writer]->is_gone) return violate("a slice ended twice");
    if (slice.ended) return;
    slice.ended = true;
    slice.drained = ended.drained;
    slice.outcome = ended.outcome;
    slice.error = ended.error.message();
    if (ended.outcome != BounceOutcome::kTransferred) {
      if (ended.error.is_ok()) violate("a failure without a reason");
      return;
    }
    const Ticket& ticket = tickets_.at(slice.ticket);
    if (ticket.ended) return;
    std::uint64_t bytes = 0;
    for (const PlanGroup& group : slice.groups) {
      PlanCursor cursor({group});
      std::vector<kvt::Run> runs;
      bytes += cursor.bytes_left();
      while (cursor.take(64, 1 << 20, &runs) > 0) {
      }
      for (const kvt::Run& run : runs) expected_.push_back(run);
    }
    if (bytes != ended.bytes) violate("a transferred slice counts " + std::to_string(ended.bytes) + " bytes");
    check_bytes(slice);
    expected_.clear();
  }

  // Groups of one slice may name the same slots; the last group's bytes stand.
  void check_bytes(const Slice& slice) {
    std::map<std::uintptr_t, std::uint8_t> want;
    std::set<std::uintptr_t> ambiguous;
    for (const kvt::Run& run : expected_) {
      for (std::size_t i = 0; i < run.bytes; ++i) {
        const std::uint8_t byte = tickets_.at(slice.ticket).world->original(run.source + i);
        const auto [entry, is_new] = want.emplace(run.destination + i, byte);
        if (!is_new && entry->second != byte) ambiguous.insert(run.destination + i);
      }
    }
    // Other slices of the ticket write to the same pool; only where this one is alone is its byte known.
    for (const auto& [id, other] : slices_) {
      if (other.ticket != slice.ticket || &other == &slice) continue;
      for (const PlanGroup& group : other.groups) {
        PlanCursor cursor({group});
        std::vector<kvt::Run> runs;
        while (cursor.take(64, 1 << 20, &runs) > 0) {
        }
        for (const kvt::Run& run : runs) {
          for (std::size_t i = 0; i < run.bytes; ++i) ambiguous.insert(run.destination + i);
        }
      }
    }
    std::size_t checked = 0;
    for (const auto& [address, byte] : want) {
      if (ambiguous.contains(address)) continue;
      ++checked;
      if (*reinterpret_cast<const std::uint8_t*>(address) != byte)
        return violate("a wrong byte in a transferred slice");
    }
    bytes_checked += checked;
  }

  void act(std::size_t, BounceSliceDrained& drained) {
    Slice& slice = slices_.at(drained.slice);
    if ((!slice.ended || slice.drained) && !agents_[slice.writer]->is_gone) violate("drained twice, or before its end");
    slice.drained = true;
    ++drained_late_;
  }

  void act(std::size_t, BounceInboundEnded& ended) {
    Ticket& ticket = tickets_.at({agent_of(ended.peer), ended.ticket});
    if (ticket.ended) return violate("a receive ended twice");
    ticket.ended = true;
    for (std::uint8_t& byte : ticket.world->destination()) byte = 0xdd;
  }

  std::mt19937 random_;
  Faults faults_;
  std::uint32_t seed_;
  BounceTime now_{};
  std::multimap<BounceTime, std::function<void()>> events_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::pair<std::size_t, std::size_t>, BounceTime> channels_;
  std::map<std::pair<std::size_t, std::uint64_t>, Ticket> tickets_;
  std::map<BounceSlice, Slice> slices_;
  std::map<std::pair<std::size_t, BounceRequest>, BounceSlice> slice_of_;
  std::vector<kvt::Run> expected_;
  std::uint64_t last_hold_ = 0;
  BounceSlice last_slice_ = 0;
  std::uint64_t drained_late_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t lost_ = 0;
  std::string violation_;

 public:
  std::size_t bytes_checked = 0;
};

}  // namespace kvt::test
