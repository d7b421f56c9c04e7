#pragma once

#include "addon/napi_setup.h"

namespace kvt {

// (NIXL library or '', NIXL package tree or '') -> promise of what this machine and build can do, with the reason for
// what it cannot. On the thread pool: loading NIXL and starting the CUDA driver take their time.
Napi::Value query_capabilities(const Napi::CallbackInfo& info);

}  // namespace kvt
