#pragma once

#include <cstddef>
#include <cstdint>

// The part of NIXL's C ABI that this package uses, declared by us because no header is present where prebuilt addons
// are made. Source: wrapper.h of NIXL 1.0 to 1.5; the layouts were compared with the disassembly of the 1.5.1 wheel.
namespace kvt::nixl {

using Agent = struct AgentObject*;
using Backend = struct BackendObject*;
using Params = struct ParamsObject*;
using OptArgs = struct OptArgsObject*;
using XferDlist = struct XferDlistObject*;
using RegDlist = struct RegDlistObject*;
using XferReq = struct XferReqObject*;
using NotifMap = struct NotifMapObject*;

// Until NIXL's versioned C API nearly every failure is kBackendError: what it means follows from what was asked.
enum Code : int {
  kSuccess = 0,
  kInProgress = 1,
  kInvalidParam = -1,
  kBackendError = -2,
  kInvalidState = -3,
};

enum Operation : int { kRead = 0, kWrite = 1 };
enum MemoryType : int { kDram = 0, kVram = 1 };
enum ThreadSync : int { kSyncNone = 0 };

// Libraries without nixl_capi_get_version. num_workers is present but ignored by them.
struct AgentConfig {
  bool enable_prog_thread = false;
  bool enable_listen_thread = false;
  int listen_port = 0;
  int thread_sync = kSyncNone;
  std::uint32_t num_workers = 1;
  std::uint64_t prog_thread_delay_us = 0;
  std::uint64_t listen_thread_delay_us = 100'000;
  bool capture_telemetry = false;
};
static_assert(sizeof(AgentConfig) == 40 && offsetof(AgentConfig, listen_port) == 4 &&
              offsetof(AgentConfig, thread_sync) == 8 && offsetof(AgentConfig, prog_thread_delay_us) == 16 &&
              offsetof(AgentConfig, capture_telemetry) == 32);

// Libraries with nixl_capi_get_version: the same size, so that a mix-up would go unnoticed and set another sync mode.
struct VersionedAgentConfig {
  bool enable_prog_thread = false;
  bool enable_listen_thread = false;
  std::uint16_t listen_port = 0;
  int thread_sync = kSyncNone;
  std::uint32_t num_workers = 1;
  std::uint64_t prog_thread_delay_us = 0;
  std::uint64_t listen_thread_delay_us = 100'000;
  bool capture_telemetry = false;
};
static_assert(sizeof(VersionedAgentConfig) == 40 && offsetof(VersionedAgentConfig, listen_port) == 2 &&
              offsetof(VersionedAgentConfig, thread_sync) == 4 &&
              offsetof(VersionedAgentConfig, prog_thread_delay_us) == 16 &&
              offsetof(VersionedAgentConfig, capture_telemetry) == 32);

}  // namespace kvt::nixl
