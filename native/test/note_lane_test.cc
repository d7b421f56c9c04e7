#include "transport/note_lane.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "transport/host_handover.h"

namespace kvt {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

std::string text_of(const InboundNote& note) {
  return {reinterpret_cast<const char*>(note.bytes.data()), note.bytes.size()};
}

struct Side {
  std::shared_ptr<NoteGauges> gauges = std::make_shared<NoteGauges>();
  NoteLane lane{gauges};
  std::vector<InboundNote> notes;

  Side() { EXPECT_TRUE(lane.open().is_ok()); }
  void progress(TimePoint now = std::chrono::steady_clock::now()) { lane.progress(now, &notes); }
};

class NoteLaneTest : public testing::Test {
 protected:
  NoteLaneTest() {
    EXPECT_TRUE(own_identity(&self_).is_ok());
    writer_.lane.add_peer(1, reader_.lane.id(), self_);
  }

  std::vector<NoteLane::Silence> silences() {
    std::vector<NoteLane::Silence> out;
    writer_.lane.take_silences(&out);
    return out;
  }

  // A connection to the reader as anybody of this user can make it.
  UniqueFd intrude(const std::vector<std::byte>& first) {
    UniqueFd socket;
    std::string name = "kv-transceiver-note-";
    for (const std::byte b : reader_.lane.id()) {
      name += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4U];
      name += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15U];
    }
    EXPECT_EQ(connect_abstract(name, &socket), Exchange::kDone);
    say(socket, first);
    reader_.progress();
    reader_.progress();
    return socket;
  }
  static void say(const UniqueFd& socket, const std::vector<std::byte>& bytes) {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // A HELLO in the writer's name, from its own process.
  std::vector<std::byte> hello() const {
    std::vector<std::byte> out = bytes_of("KVTN");
    out.insert(out.end(), writer_.lane.id().begin(), writer_.lane.id().end());
    return out;
  }

  ProcessIdentity self_;
  Side reader_;
  Side writer_;
};

TEST_F(NoteLaneTest, ANoteIsHeardOnceItsAgentIs) {
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("early")));
  reader_.progress();
  reader_.progress();
  EXPECT_TRUE(reader_.notes.empty());
  reader_.lane.hear(7, writer_.lane.id(), self_);
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("late")));
  reader_.progress();
  ASSERT_EQ(reader_.notes.size(), 2U);
  EXPECT_EQ(reader_.notes[0].from, 7U);
  EXPECT_EQ(text_of(reader_.notes[0]), "early");
  EXPECT_EQ(text_of(reader_.notes[1]), "late");
  EXPECT_EQ(reader_.gauges->at(NoteGauge::kRefused), 0U);
}

TEST_F(NoteLaneTest, WhoIsNotTheProcessOfTheMetadataIsNotHeard) {
  ProcessIdentity other = self_;
  other.pid += 1;
  reader_.lane.hear(7, writer_.lane.id(), other);
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("forged")));
  reader_.progress();
  reader_.progress();
  EXPECT_TRUE(reader_.notes.empty());
  // Nor is it spoken to.
  writer_.lane.add_peer(2, reader_.lane.id(), other);
  EXPECT_FALSE(writer_.lane.send(2, bytes_of("to another")));
  // Another machine, another process namespace, no lane.
  other = self_;
  other.boot_id[0] ^= std::byte{1};
  writer_.lane.add_peer(3, reader_.lane.id(), other);
  other = self_;
  other.pid_namespace += 1;
  writer_.lane.add_peer(4, reader_.lane.id(), other);
  writer_.lane.add_peer(5, NoteLaneId{}, self_);
  for (const PeerId peer : {3U, 4U, 5U, 6U}) EXPECT_FALSE(writer_.lane.send(peer, bytes_of("nowhere"))) << peer;
}

TEST_F(NoteLaneTest, WhatIsNoNoteCutsItsConnectionAndIsCounted) {
  reader_.lane.hear(7, writer_.lane.id(), self_);
  const std::vector<std::vector<std::byte>> wrong = {bytes_of("\x03what"), bytes_of("\x01"), bytes_of("\x02"),
                                                     std::vector<std::byte>(NoteLane::kMaxNoteBytes + 2, std::byte{1})};
  std::uint64_t refused = 0;
  for (const auto& message : wrong) {
    const UniqueFd socket = intrude(hello());
    say(socket, message);
    say(socket, bytes_of("\x01"
                         "after"));
    reader_.progress();
    EXPECT_EQ(reader_.gauges->at(NoteGauge::kRefused), ++refused);
    EXPECT_FALSE(is_connected(socket.get()));
  }
  for (const auto& greeting : {bytes_of("KVTN"), bytes_of("KVTXabcdefghijkl")}) {
    const UniqueFd socket = intrude(greeting);
    EXPECT_EQ(reader_.gauges->at(NoteGauge::kRefused), ++refused);
    EXPECT_FALSE(is_connected(socket.get()));
  }
  EXPECT_TRUE(reader_.notes.empty());
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("still here")));
  reader_.progress();
  reader_.progress();
  ASSERT_EQ(reader_.notes.size(), 1U);
  EXPECT_EQ(text_of(reader_.notes[0]), "still here");
}

TEST_F(NoteLaneTest, OneThatNeverStopsHasItsTurnsOnly) {
  reader_.lane.hear(7, writer_.lane.id(), self_);
  reader_.progress();
  std::size_t sent = 0;
  while (writer_.lane.send(1, bytes_of("again"))) ++sent;
  EXPECT_GT(sent, 16U);
  reader_.progress();
  EXPECT_LE(reader_.notes.size(), 16U);
  while (reader_.notes.size() < sent) {
    const std::size_t before = reader_.notes.size();
    reader_.progress();
    ASSERT_GT(reader_.notes.size(), before);
  }
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("there is room again")));
}

TEST_F(NoteLaneTest, LooksForWhatWasAnnouncedForAWhileAndATenthOfTheTime) {
  reader_.lane.hear(7, writer_.lane.id(), self_);
  TimePoint now = std::chrono::steady_clock::now();
  reader_.progress(now);
  EXPECT_EQ(reader_.lane.next_wakeup(now), std::nullopt);
  writer_.lane.announce(1, bytes_of("it"));
  reader_.progress(now);
  reader_.progress(now);
  ASSERT_EQ(reader_.notes.size(), 1U);
  EXPECT_EQ(reader_.notes[0].kind, InboundNote::Kind::kSoon);
  EXPECT_EQ(reader_.notes[0].from, 7U);
  EXPECT_EQ(text_of(reader_.notes[0]), "it");
  EXPECT_EQ(reader_.lane.next_wakeup(now), now);
  now += NoteLane::kAwake;
  reader_.progress(now);
  EXPECT_EQ(reader_.lane.next_wakeup(now), std::nullopt);
  now += 8 * NoteLane::kAwake;
  writer_.lane.announce(1, bytes_of("while it rests"));
  reader_.progress(now);
  EXPECT_EQ(reader_.lane.next_wakeup(now), std::nullopt);
  EXPECT_EQ(reader_.notes.size(), 1U);
  now += 2 * NoteLane::kAwake;
  writer_.lane.announce(1, bytes_of("it"));
  writer_.lane.announce(1, bytes_of("another"));
  reader_.progress(now);
  ASSERT_EQ(reader_.notes.size(), 3U);
  EXPECT_EQ(text_of(reader_.notes[2]), "another");
  EXPECT_EQ(reader_.lane.next_wakeup(now), now);
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("it")));
  reader_.progress(now);
  EXPECT_EQ(reader_.lane.next_wakeup(now), now);
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("another")));
  reader_.progress(now);
  EXPECT_EQ(reader_.notes.back().kind, InboundNote::Kind::kNote);
  EXPECT_EQ(reader_.lane.next_wakeup(now), std::nullopt);
}

TEST_F(NoteLaneTest, APeerThatEndsIsNotWaitedForAndOneThatComesBackIsReached) {
  reader_.lane.hear(7, writer_.lane.id(), self_);
  reader_.progress();
  Side gone;
  writer_.lane.add_peer(2, gone.lane.id(), self_);
  EXPECT_TRUE(writer_.lane.send(2, bytes_of("unread")));
  gone.lane = NoteLane(gone.gauges);
  writer_.progress();
  writer_.progress();
  EXPECT_FALSE(writer_.lane.send(2, bytes_of("lost")));
  EXPECT_EQ(writer_.lane.next_wakeup(std::chrono::steady_clock::now()), std::nullopt);
  EXPECT_TRUE(writer_.lane.send(1, bytes_of("others are not touched")));
}

TEST_F(NoteLaneTest, APeerThatCannotBeReachedIsToldOfOnceWithARemedy) {
  ProcessIdentity hidden = self_;
  hidden.pid_namespace += 1;
  ProcessIdentity elsewhere = hidden;
  elsewhere.boot_id[3] ^= std::byte{1};
  NoteLaneId nobody{};
  nobody[0] = std::byte{1};
  writer_.lane.add_peer(2, reader_.lane.id(), hidden);
  writer_.lane.add_peer(3, reader_.lane.id(), elsewhere);
  writer_.lane.add_peer(4, NoteLaneId{}, hidden);
  writer_.lane.add_peer(5, nobody, self_);
  for (const WatchId speaker : {8U, 9U}) writer_.lane.hear(speaker, reader_.lane.id(), hidden);
  writer_.lane.hear(10, reader_.lane.id(), elsewhere);
  const std::vector<NoteLane::Silence> told = silences();
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[0].peer, PeerId{2});
  EXPECT_NE(told[0].why.find("another process namespace"), std::string::npos) << told[0].why;
  EXPECT_NE(told[0].why.find("let both share one"), std::string::npos) << told[0].why;
  EXPECT_EQ(told[1].peer, PeerId{5});
  EXPECT_NE(told[1].why.find("in one network namespace"), std::string::npos) << told[1].why;
  EXPECT_EQ(told[2].peer, std::nullopt);
  EXPECT_NE(told[2].why.find("reports of a process of this machine"), std::string::npos) << told[2].why;
  EXPECT_TRUE(silences().empty());
}

TEST_F(NoteLaneTest, APeerThatCutsTheConnectionAgainAndAgainIsToldOfOnce) {
  NoteLaneId id{};
  id[5] = std::byte{0xab};
  UniqueFd listener;
  ASSERT_TRUE(listen_abstract("kv-transceiver-note-0000000000ab000000000000", &listener).is_ok());
  writer_.lane.add_peer(2, id, self_);
  int cut = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.is_open()) break;
    ++cut;
    EXPECT_TRUE(silences().empty()) << cut;
    // Its end is seen, then it is connected again.
    EXPECT_EQ(::shutdown(accepted.get(), SHUT_RDWR), 0);
    writer_.progress();
    if (cut < 9) writer_.progress();
  }
  EXPECT_EQ(cut, 9);
  writer_.progress();
  const std::vector<NoteLane::Silence> told = silences();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].peer, PeerId{2});
  EXPECT_NE(told[0].why.find("it closed the connection for them 9 times"), std::string::npos) << told[0].why;
  EXPECT_EQ(writer_.lane.next_wakeup(std::chrono::steady_clock::now()), std::nullopt);
}

}  // namespace
}  // namespace kvt
