// The functions that a libnixl_capi.so must export. Weak: those of nixl_fake_library.cc stand where both exist.
// KVT_FAKE_PARTIAL is the library that lacks them.

#if !defined(KVT_FAKE_PARTIAL)

#define KVT_NIXL_CALL(result, name, parameters)
#define KVT_NIXL_REQUIRED(name) \
  extern "C" __attribute__((weak, visibility("default"))) int nixl_capi_##name() { return -1; }
#include "transport/nixl_api.def"

#endif
