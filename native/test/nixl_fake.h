#pragma once

#include <deque>
#include <string>
#include <vector>

namespace kvt::test {

// Script and record of the fake libnixl_capi.so (nixl_fake_library.cc), reached through its function `fake_nixl`.
struct FakeNixl {
  int post_code = 1;
  // What get_xfer_status answers, in turn; the last one stays.
  std::deque<int> status_codes{1};
  int create_request_code = 0;
  // Whether check_remote_md and gen_notif succeed.
  bool knows_remote = true;
  bool takes_messages = true;
  // Every call that changes something, in order, such as "post 1" or "invalidate peer-b".
  std::vector<std::string> calls;
  // What create_configured_agent was given, byte by byte.
  std::vector<unsigned char> agent_config;
};

using FakeNixlGetter = FakeNixl* (*)();

}  // namespace kvt::test
