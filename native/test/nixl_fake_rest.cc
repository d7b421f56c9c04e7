// The functions that a libnixl_capi.so must export. Weak: those of nixl_fake_library.cc stand where both exist.

#define KVT_NIXL_CALL(result, name, parameters)
#define KVT_NIXL_REQUIRED(name) \
  extern "C" __attribute__((weak, visibility("default"))) int nixl_capi_##name() { return -1; }
#include "transport/nixl_api.def"
