#pragma once

#include "transport/nixl_abi.h"

namespace kvt::nixl {

// The loaded functions. Every pointer is set in an object that NixlLibrary hands out, but for mem_free.
struct Api {
#define KVT_NIXL_CALL(result, name, parameters) result(*name) parameters = nullptr;
#define KVT_NIXL_REQUIRED(name)
#include "transport/nixl_api.def"

  // Frees what get_local_md and load_remote_md return. Absent before the versioned API: their results are then
  // malloc's.
  void (*mem_free)(void* memory) = nullptr;
};

}  // namespace kvt::nixl
