#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace kvt {

// Mirrored by src/agent/native.ts, which turns them into typed errors.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,
  kState = 2,
  kCapability = 3,
  kResource = 4,
  kTransport = 5,
  kPeerLost = 6,
  kCancelled = 7,
  kInternal = 8,
  kDeviceLost = 9,
};

// The result of anything that can fail below addon/. The function that decides a failure writes its message.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace kvt
