#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace kvt {

// Role: carries the frames of the bounce path between two agents. Frames may get lost and need no order with the data.
// Threading: the progress thread; no call blocks.
class BounceLink {
 public:
  virtual ~BounceLink() = default;
  BounceLink() = default;
  BounceLink(const BounceLink&) = delete;
  BounceLink& operator=(const BounceLink&) = delete;

  virtual Status open() = 0;
  // What a peer needs to reach this side. At most kMaxBounceLinkAddress bytes.
  virtual std::vector<std::byte> address() const = 0;
  // `address` is untrusted.
  virtual Status add_peer(PeerId peer, std::span<const std::byte> address) = 0;
  virtual void remove_peer(PeerId peer) = 0;
  // Of a peer that was lost: it closed its end itself, as the kernel does for a process that has ended. Otherwise this
  // side gave it up, or it spoke nonsense.
  virtual bool has_ended(PeerId peer) const {
    (void)peer;
    return false;
  }
  // Frames come and go also when the transport below has removed the peer.
  virtual bool stands_alone(PeerId peer) const {
    (void)peer;
    return true;
  }

  // False: the peer cannot be reached any more.
  virtual bool send(PeerId peer, std::span<const std::byte> frame) = 0;
  // Drives connections; appends frames, and peers whose connection broke since the last call.
  virtual void progress(std::vector<Transport::Message>* frames, std::vector<PeerId>* lost) = 0;

  // Readable when progress has something to do; -1: none.
  virtual int wait_fd() const { return -1; }
  // Whether it tells of every frame; else some are only found by progress.
  virtual bool is_announced() const { return wait_fd() >= 0; }
  virtual std::optional<TimePoint> next_wakeup(TimePoint now) const {
    (void)now;
    return std::nullopt;
  }
};

inline constexpr std::size_t kMaxBounceLinkAddress = 256;

// Over the messages of the transport below, which outlives it.
class BounceMessageLink final : public BounceLink {
 public:
  explicit BounceMessageLink(Transport* transport) : transport_(transport) {}

  Status open() override { return Status::ok(); }
  std::vector<std::byte> address() const override { return {}; }
  Status add_peer(PeerId, std::span<const std::byte>) override { return Status::ok(); }
  void remove_peer(PeerId) override {}
  bool stands_alone(PeerId) const override { return false; }
  bool send(PeerId peer, std::span<const std::byte> frame) override {
    return transport_->send_message(peer, frame).is_ok();
  }
  void progress(std::vector<Transport::Message>* frames, std::vector<PeerId>*) override {
    transport_->take_messages(frames);
  }

 private:
  Transport* transport_;
};

}  // namespace kvt
