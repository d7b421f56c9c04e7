#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/note_gauges.h"
#include "core/unique_fd.h"
#include "transport/host_handover.h"
#include "transport/process_watch.h"
#include "transport/transport.h"

namespace kvt {

// Names an agent's note lane on its machine. All zero: it has none.
using NoteLaneId = std::array<std::byte, 12>;

// Role: carries notes between agents of one machine: small texts that may get lost, each whole or not at all.
// Why: a report over the control plane wakes two more threads, which costs more than a small slice takes on the wire.
//   Sockets, not shared memory: the kernel keeps messages whole, says who speaks, bounds what is queued, and a process
//   that is killed while it writes leaves no half of one.
// Trust: a connection is that of an agent that is heard when its process is the one that the agent's metadata names, as
//   the kernel says, and it states the lane id of that metadata. No request names a lane, a socket or a process.
// Ordering: none with the data; a note is sent after what it speaks of has arrived. A `kSoon` before a note says what
// it
//   will be, so that the other side reads it ahead and looks for it without sleeping: for kAwake at most, and a tenth
//   of the time. What is announced while it rests is dropped.
// Threading: the progress thread; no call blocks.
// Ownership: owns its sockets, one for each peer that was added, opened by whoever sends on it.
//
//   HELLO  client -> server   magic 4 | client's lane id 12
//   then, client -> server    kind 1 | the bytes of the note that is said (kNote) or will be (kSoon)
class NoteLane {
 public:
  explicit NoteLane(std::shared_ptr<NoteGauges> gauges) : gauges_(std::move(gauges)) {}

  // kResource when there is no descriptor left; the agent then goes on without.
  Status open();
  const NoteLaneId& id() const { return id_; }

  // These do nothing for an agent that has no lane, or runs where the kernel cannot say who it is.
  void add_peer(PeerId peer, const NoteLaneId& id, const ProcessIdentity& process);
  void remove_peer(PeerId peer);

  // Notes are taken from this process's agent from now on, as `speaker`'s. Of an agent that is heard twice, the
  // newer's.
  void hear(WatchId speaker, const NoteLaneId& id, const ProcessIdentity& process);
  void ignore(WatchId speaker);

  // This note will follow soon.
  void announce(PeerId peer, std::span<const std::byte> note);
  // False: it was not sent and will not be.
  bool send(PeerId peer, std::span<const std::byte> note);
  // Appends what came. Bounded: the rest has its turn.
  void progress(TimePoint now, std::vector<InboundNote>* out);

  // Why notes to a peer, or those of speakers (no peer), go by the control plane alone, with what helps; once each.
  struct Silence {
    std::optional<PeerId> peer;
    std::string why;
  };
  void take_silences(std::vector<Silence>* out);

  int wait_fd() const { return epoll_.get(); }
  std::optional<TimePoint> next_wakeup(TimePoint now) const;

  // A final report with the longest text that it may have is smaller.
  static constexpr std::size_t kMaxNoteBytes = 2048;
  // How long a thread goes on looking for a note that was announced.
  static constexpr std::chrono::milliseconds kAwake{2};

 private:
  enum class Kind : std::uint8_t { kNote = 1, kSoon = 2 };
  struct Hello {
    std::uint32_t magic = kMagic;
    NoteLaneId client{};
    static constexpr std::uint32_t kMagic = 0x4e54564b;  // "KVTN"
  };
  enum class State : std::uint8_t { kConnecting, kOpen, kLost };
  struct Peer {
    NoteLaneId id{};
    std::uint32_t pid = 0;
    UniqueFd socket;  // to the peer
    State state = State::kConnecting;
    int reconnects = 0;
  };
  // A connection that somebody opened to us.
  struct Inbound {
    UniqueFd socket;
    std::uint32_t pid = 0;
    bool has_greeted = false;
    NoteLaneId id{};
    std::optional<WatchId> speaker;
  };
  struct Speaker {
    NoteLaneId id{};
    std::uint32_t pid = 0;
  };

  bool is_near(const NoteLaneId& id, const ProcessIdentity& process) const;
  // On this machine, but where the kernel cannot say who it is.
  bool is_hidden(const NoteLaneId& id, const ProcessIdentity& process) const;
  void accept_all();
  void connect(PeerId id, Peer* peer);
  void lose(Peer* peer);
  // The same of one that was never reached, which is told.
  void miss(PeerId id, Peer* peer);
  bool transmit(PeerId peer, Kind kind, std::span<const std::byte> bytes);
  // False: drop the connection.
  bool receive(std::uint64_t id, Inbound* inbound, TimePoint now, std::vector<InboundNote>* out);
  // Whose it is by now.
  void identify(std::uint64_t id, Inbound* inbound);
  bool refuse();
  void watch(int operation, int socket, std::uint32_t events, std::uint64_t id) const;
  // False: not now.
  bool stay_awake(TimePoint now);
  void may_sleep(TimePoint now);

  std::shared_ptr<NoteGauges> gauges_;
  UniqueFd epoll_;
  UniqueFd listener_;
  NoteLaneId id_{};
  std::optional<ProcessIdentity> self_;
  std::unordered_map<PeerId, Peer> peers_;
  std::map<WatchId, Speaker> speakers_;
  std::map<std::uint64_t, Inbound> inbound_;
  std::uint64_t last_inbound_ = 0;
  std::vector<Silence> silences_;
  bool has_told_of_speakers_ = false;
  std::optional<TimePoint> awake_since_;
  std::size_t announced_ = 0;  // notes that are looked for
  TimePoint rests_until_{};    // until then what is announced is slept for
};

}  // namespace kvt
