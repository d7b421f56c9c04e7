#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/agent_engine.h"
#include "transport/p2p_transport.h"

namespace kvt {

inline constexpr auto kTestLimit = std::chrono::seconds(10);

// An engine whose replies are waited for, as a test may.
class TestAgent {
 public:
  TestAgent(const std::string& name, TransportFactory factory) {
    const Status started = AgentEngine::start(
        name, std::move(factory),
        [this](const Status& status) {
          opening_ = status;
          tell();
        },
        [this](std::vector<Notice> notices) {
          const std::lock_guard<std::mutex> lock(mutex_);
          for (Notice& notice : notices) notices_.push_back(std::move(notice));
          changed_.notify_all();
        },
        &engine_);
    EXPECT_TRUE(started.is_ok()) << started.message();
    hear();
  }
  ~TestAgent() {
    if (engine_ == nullptr) return;
    if (!is_closed_) close();
    EXPECT_TRUE(engine_->wait_closed(std::chrono::milliseconds(5000)));
  }

  const Status& opening() const { return opening_; }

  CloseReport close(std::chrono::milliseconds limit = std::chrono::seconds(5)) {
    CloseReport report;
    engine_->push(CloseAgent{std::chrono::steady_clock::now() + limit, [&](const CloseReport& r) {
                               report = r;
                               tell();
                             }});
    hear();
    is_closed_ = true;
    return report;
  }

  Status allocate(std::size_t size, Region* out, int device = -1) {
    Status result;
    engine_->push(AllocateRegion{.size = size,
                                 .reply =
                                     [&](const Status& status, const Region& region) {
                                       result = status;
                                       *out = region;
                                       tell();
                                     },
                                 .device = device});
    hear();
    return result;
  }

  Status register_region(const Region& region) {
    Status result;
    engine_->push(RegisterRegion{region, [&](const Status& status, const Region&) {
                                   result = status;
                                   tell();
                                 }});
    hear();
    return result;
  }

  std::vector<std::byte> metadata() {
    std::vector<std::byte> out;
    engine_->push(GetMetadata{[&](const Status&, std::vector<std::byte> bytes) {
      out = std::move(bytes);
      tell();
    }});
    hear();
    return out;
  }

  Status add_peer(PeerId peer, std::vector<std::byte> metadata, std::string name = {}) {
    Status result;
    engine_->push(AddPeer{peer, std::move(metadata),
                          [&](const Status& status, const std::vector<Region>&, const PeerPaths&) {
                            result = status;
                            tell();
                          },
                          std::move(name)});
    hear();
    return result;
  }

  Status expect_inbound(PeerId peer, Ticket ticket, std::vector<InboundGroup> groups) {
    Status result;
    engine_->push(ExpectInbound{peer, ticket, std::move(groups), [&](const Status& status) {
                                  result = status;
                                  tell();
                                }});
    hear();
    return result;
  }

  // Whether this side stopped to touch the ticket's pages within the limit.
  bool end_inbound(PeerId peer, Ticket ticket, std::chrono::milliseconds limit = kTestLimit) {
    // Told for as long as the agent lives, whoever still waits.
    const auto ended = std::make_shared<std::promise<void>>();
    std::future<void> told = ended->get_future();
    engine_->push(EndInbound{peer, ticket, [ended] { ended->set_value(); }});
    return told.wait_for(limit) == std::future_status::ready;
  }

  void remove_peer(PeerId peer) {
    engine_->push(RemovePeer{peer, [&] { tell(); }});
    hear();
  }

  void events_changed() { engine_->push(EventsChanged{}); }
  void submit(Submission submission) { engine_->push(std::move(submission)); }
  void cancel(SubmissionId id) { engine_->push(CancelSubmission{id}); }

  Notice settled(SubmissionId id) {
    std::unique_lock<std::mutex> lock(mutex_);
    Notice found;
    const bool is_there = changed_.wait_for(lock, kTestLimit, [&] {
      for (const Notice& notice : notices_) {
        if (notice.submission != id || notice.kind != NoticeKind::kCompletion) continue;
        found = notice;
        return true;
      }
      return false;
    });
    EXPECT_TRUE(is_there) << "submission " << id << " did not settle";
    return found;
  }
  bool has_settled(SubmissionId id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(notices_.begin(), notices_.end(), [id](const Notice& n) { return n.submission == id; });
  }

  // What it said goes another way, so far.
  std::vector<std::string> advice() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> out;
    for (const Notice& notice : notices_) {
      if (notice.kind == NoticeKind::kAdvice) out.push_back(notice.error.message());
    }
    return out;
  }

 private:
  void tell() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++told_;
    changed_.notify_all();
  }
  void hear() {
    std::unique_lock<std::mutex> lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kTestLimit, [this] { return told_ > heard_; })) << "no reply";
    ++heard_;
  }

  std::shared_ptr<AgentEngine> engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int told_ = 0;
  int heard_ = 0;
  Status opening_;
  std::vector<Notice> notices_;
  bool is_closed_ = false;
};

inline TransportFactory p2p_on(int device, unsigned blocks = kDefaultCopyBlocks) {
  return [options = P2pOptions{device, blocks}](Status* error) { return make_p2p_transport(options, error); };
}

}  // namespace kvt
