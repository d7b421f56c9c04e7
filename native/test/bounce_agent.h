#pragma once

// One engine with one pool over the bounce path, and slices between two of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "engine/agent_engine.h"
#include "transport/bounce_transport.h"
#include "transport/host_transport.h"
#include "transport/nixl_transport.h"
#include "transport/router_transport.h"

namespace kvt::bounce_test {

using namespace std::chrono_literals;

inline constexpr std::size_t kSlotBytes = 16384;
inline constexpr std::int32_t kSlots = 512;
inline constexpr std::size_t kPool = kSlotBytes * kSlots;

inline BounceOptions small_arena() {
  return {.arena_bytes = std::size_t{1} << 20,
          .max_chunk_bytes = std::size_t{256} << 10,
          .max_inflight_chunks = 4,
          .request_timeout = 2000ms,
          .is_forced = true};
}

// As the addon puts them together: the router decides what is bounced.
inline RouterOptions router_over(const std::optional<BounceOptions>& bounce) {
  RouterOptions options;
  if (bounce) options.bounce = thresholds_of(*bounce);
  return options;
}

inline TransportFactory host_factory(std::optional<BounceOptions> bounce) {
  return [bounce](Status* error) -> std::unique_ptr<Transport> {
    std::unique_ptr<Transport> base = make_host_transport({}, error);
    if (bounce && base != nullptr) {
      BounceOptions options = *bounce;
      options.link_end_proves_end = true;
      options.is_forced = true;
      base = make_bounce_transport(std::move(base), options, error);
    }
    return base == nullptr ? nullptr : make_router_transport(std::move(base), router_over(bounce));
  };
}

inline TransportFactory nixl_factory(std::optional<BounceOptions> bounce, const std::string& name) {
  return [bounce, name](Status* error) -> std::unique_ptr<Transport> {
    const NixlOptions options{
        .agent_name = name, .library_path = "", .package_tree = KVT_PACKAGE_TREE, .peer_grace = 100ms};
    std::unique_ptr<Transport> base = make_nixl_transport(options, error);
    if (bounce && base != nullptr) {
      BounceOptions with_messages = *bounce;
      with_messages.link = BounceLinkKind::kMessages;
      with_messages.is_forced = true;
      base = make_bounce_transport(std::move(base), with_messages, error);
    }
    return base == nullptr ? nullptr : make_router_transport(std::move(base), router_over(bounce));
  };
}

// One engine with one pool, whose replies and notices can be waited for.
class Agent {
 public:
  explicit Agent(TransportFactory factory) {
    std::promise<Status> opened;
    const Status started = AgentEngine::start(
        "bounce-test", std::move(factory), [&opened](const Status& status) { opened.set_value(status); },
        [this](std::vector<Notice> batch) {
          const std::lock_guard<std::mutex> lock(mutex_);
          for (Notice& notice : batch) {
            if (notice.kind == NoticeKind::kCompletion) notices_[notice.submission] = std::move(notice);
          }
          condition_.notify_all();
        },
        &engine_);
    EXPECT_TRUE(started.is_ok()) << started.message();
    const Status status = opened.get_future().get();
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::promise<void> done;
    engine_->push(AllocateRegion{kPool, [&](const Status& allocated, const Region& region) {
                                   EXPECT_TRUE(allocated.is_ok()) << allocated.message();
                                   pool = region;
                                   done.set_value();
                                 }});
    done.get_future().get();
  }
  ~Agent() { close(); }

  std::vector<std::byte> metadata() {
    std::promise<std::vector<std::byte>> bytes;
    engine_->push(GetMetadata{[&](const Status&, std::vector<std::byte> got) { bytes.set_value(std::move(got)); }});
    return bytes.get_future().get();
  }
  void add(PeerId peer, const std::vector<std::byte>& bytes) {
    std::promise<Status> added;
    engine_->push(AddPeer{peer, bytes, [&](const Status& status, const std::vector<Region>&, const PeerPaths&) {
                            added.set_value(status);
                          }});
    const Status status = added.get_future().get();
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  void remove(PeerId peer) {
    std::promise<void> removed;
    engine_->push(RemovePeer{peer, [&] { removed.set_value(); }});
    removed.get_future().get();
  }
  Status expect(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
    std::promise<Status> done;
    engine_->push(
        ExpectInbound{peer, ticket, std::move(groups), [&](const Status& status) { done.set_value(status); }});
    return done.get_future().get();
  }
  void end(PeerId peer, Ticket ticket) {
    std::promise<void> done;
    engine_->push(EndInbound{peer, ticket, [&] { done.set_value(); }});
    done.get_future().get();
  }
  void submit(Submission submission) { engine_->push(std::move(submission)); }
  void cancel(SubmissionId id) { engine_->push(CancelSubmission{id}); }
  Notice wait(SubmissionId id, std::chrono::seconds limit = 20s) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool came = condition_.wait_for(lock, limit, [&] { return notices_.contains(id); });
    EXPECT_TRUE(came) << "submission " << id << " has no completion";
    if (!came) return {};
    return notices_.at(id);
  }
  CloseReport close() {
    if (!engine_) return {};
    std::promise<CloseReport> closed;
    engine_->push(CloseAgent{std::chrono::steady_clock::now() + 5s,
                             [&](const CloseReport& report) { closed.set_value(report); }});
    const CloseReport report = closed.get_future().get();
    EXPECT_TRUE(engine_->wait_closed(5s));
    engine_.reset();
    return report;
  }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(pool.base); }

  Region pool;

 private:
  std::shared_ptr<AgentEngine> engine_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::map<SubmissionId, Notice> notices_;
};

// Pieces of heads: eight of 1536 bytes out of each slot, elsewhere on the other side.
inline std::shared_ptr<const FragmentTable> heads_table(std::uintptr_t from, std::uintptr_t to) {
  Fragment fragment;
  fragment.source = {from, kSlotBytes, kSlotBytes, kSlots};
  fragment.destination = {to, kSlotBytes, kSlotBytes, kSlots};
  fragment.source_offset = 256;
  fragment.destination_offset = 64;
  fragment.bytes = 1536;
  fragment.count = 8;
  fragment.source_stride = 2000;
  fragment.destination_stride = 1900;
  auto table = std::make_shared<FragmentTable>();
  const Status status = FragmentTable::create({fragment}, table.get());
  EXPECT_TRUE(status.is_ok()) << status.message();
  return table;
}

inline std::vector<std::int32_t> shuffled_pairs(std::mt19937* random, std::size_t count) {
  std::vector<std::int32_t> from(kSlots);
  std::iota(from.begin(), from.end(), 0);
  std::vector<std::int32_t> to = from;
  std::shuffle(from.begin(), from.end(), *random);
  std::shuffle(to.begin(), to.end(), *random);
  std::vector<std::int32_t> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(from[i]);
    pairs.push_back(to[i]);
  }
  return pairs;
}

inline InboundGroup inbound_of(std::uint32_t key, std::shared_ptr<const FragmentTable> table,
                               std::span<const std::int32_t> pairs) {
  InboundGroup group{key, std::move(table), {}};
  for (std::size_t i = 1; i < pairs.size(); i += 2) group.slots.push_back(pairs[i]);
  return group;
}

inline Submission slice_of(SubmissionId id, PeerId peer, Ticket ticket, std::shared_ptr<const FragmentTable> table,
                           std::vector<std::int32_t> pairs, std::uint32_t key) {
  Submission submission;
  submission.id = id;
  submission.peer = peer;
  submission.flow = id;
  submission.ticket = ticket;
  submission.groups.push_back({std::move(table), std::move(pairs), key});
  return submission;
}

inline void fill(Agent* agent, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i + 4 <= kPool; i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(agent->bytes() + i, &word, 4);
  }
}

// What the destination must hold: `before` everywhere but in the pieces.
inline std::vector<std::uint8_t> expected_after(Agent* from, std::uint8_t before, const FragmentTable& table,
                                                std::span<const std::int32_t> pairs) {
  std::vector<std::uint8_t> out(kPool, before);
  const Fragment& fragment = table.fragments()[0];
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    for (std::size_t piece = 0; piece < fragment.count; ++piece) {
      const std::size_t source =
          static_cast<std::size_t>(pairs[i]) * kSlotBytes + fragment.source_offset + piece * fragment.source_stride;
      const std::size_t target = static_cast<std::size_t>(pairs[i + 1]) * kSlotBytes + fragment.destination_offset +
                                 piece * fragment.destination_stride;
      std::memcpy(out.data() + target, from->bytes() + source, fragment.bytes);
    }
  }
  return out;
}

inline void send_and_check(Agent* writer, Agent* reader, PeerId peer_of_reader, PeerId peer_of_writer) {
  std::mt19937 random(77);
  fill(writer, 5);
  std::memset(reader->bytes(), 0x11, kPool);
  const auto table = heads_table(writer->pool.base, reader->pool.base);
  const std::vector<std::int32_t> pairs = shuffled_pairs(&random, 500);
  ASSERT_TRUE(reader->expect(peer_of_writer, 42, {inbound_of(3, table, pairs)}).is_ok());
  // In five slices, as chunks of a prefill come.
  for (std::size_t i = 0; i < 5; ++i) {
    const std::vector<std::int32_t> part(pairs.begin() + static_cast<std::ptrdiff_t>(200 * i),
                                         pairs.begin() + static_cast<std::ptrdiff_t>(200 * (i + 1)));
    writer->submit(slice_of(i + 1, peer_of_reader, 42, table, part, 3));
  }
  for (SubmissionId id = 1; id <= 5; ++id) {
    const Notice notice = writer->wait(id);
    ASSERT_EQ(notice.outcome, Outcome::kTransferred) << notice.error.message();
    ASSERT_EQ(notice.bytes, 100 * table->bytes_per_pair());
    ASSERT_TRUE(notice.drained);
  }
  const std::vector<std::uint8_t> expected = expected_after(writer, 0x11, *table, pairs);
  ASSERT_EQ(std::memcmp(reader->bytes(), expected.data(), kPool), 0);
  reader->end(peer_of_writer, 42);
}

struct Pair {
  Pair(const TransportFactory& one, const TransportFactory& other) : a(one), b(other) {
    const auto of_a = a.metadata();
    const auto of_b = b.metadata();
    a.add(1, of_b);
    b.add(1, of_a);
  }
  Agent a;
  Agent b;
};

}  // namespace kvt::bounce_test
