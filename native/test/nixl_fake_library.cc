// A libnixl_capi.so that does as a test says, for what a real one cannot be made to do on demand. Linked with
// nixl_fake_rest.cc, which brings the functions nobody calls, except for the last form:
//   KVT_FAKE_SCRIPTED   all functions, behaving by FakeNixl
//   KVT_FAKE_VERSIONED  the same, with nixl_capi_get_version as in the versioned C API
//   KVT_FAKE_STUB       all functions, and says that it is the stub
//   KVT_FAKE_PARTIAL    two functions only

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "test/nixl_fake.h"

#define KVT_EXPORT extern "C" __attribute__((visibility("default")))

#if defined(KVT_FAKE_PARTIAL)

KVT_EXPORT bool nixl_capi_is_stub() { return false; }
KVT_EXPORT int nixl_capi_create_agent(const char*, void**) { return -2; }

#else

namespace {

kvt::test::FakeNixl fake;
int last_object = 0;

// Handles are small numbers, so that the record can name them.
template <typename Handle>
int make(Handle** out) {
  *out = reinterpret_cast<Handle*>(static_cast<std::uintptr_t>(++last_object));
  return 0;
}

void record(const std::string& call) { fake.calls.push_back(call); }
std::string number(const void* handle) { return std::to_string(reinterpret_cast<std::uintptr_t>(handle)); }

int next_status() {
  const int code = fake.status_codes.front();
  if (fake.status_codes.size() > 1) fake.status_codes.pop_front();
  return code;
}

}  // namespace

KVT_EXPORT kvt::test::FakeNixl* fake_nixl() { return &fake; }

#if defined(KVT_FAKE_STUB)
KVT_EXPORT bool nixl_capi_is_stub() { return true; }
#else
KVT_EXPORT bool nixl_capi_is_stub() { return false; }
#endif
#if defined(KVT_FAKE_VERSIONED)
KVT_EXPORT int nixl_capi_get_version() { return 0; }
KVT_EXPORT void nixl_capi_mem_free(void* memory) {
  record("mem_free");
  std::free(memory);
}
#endif

KVT_EXPORT int nixl_capi_create_configured_agent(const char*, const void* config, void** agent) {
  const auto* bytes = static_cast<const unsigned char*>(config);
  fake.agent_config.assign(bytes, bytes + 40);
  return make(agent);
}
KVT_EXPORT int nixl_capi_destroy_agent(void*) { return record("destroy_agent"), 0; }
KVT_EXPORT int nixl_capi_create_params(void** out) { return make(out); }
KVT_EXPORT int nixl_capi_destroy_params(void*) { return 0; }
KVT_EXPORT int nixl_capi_create_backend(void*, const char* plugin, void*, void** out) {
  record(std::string("create_backend ") + plugin);
  return make(out);
}
KVT_EXPORT int nixl_capi_destroy_backend(void*) { return 0; }
KVT_EXPORT int nixl_capi_create_opt_args(void** out) { return make(out); }
KVT_EXPORT int nixl_capi_destroy_opt_args(void*) { return 0; }
KVT_EXPORT int nixl_capi_opt_args_add_backend(void*, void*) { return 0; }
KVT_EXPORT int nixl_capi_create_reg_dlist(int, void** out) { return make(out); }
KVT_EXPORT int nixl_capi_destroy_reg_dlist(void*) { return 0; }
KVT_EXPORT int nixl_capi_reg_dlist_add_desc(void*, std::uintptr_t, std::size_t, std::uint64_t, const void*,
                                            std::size_t) {
  return 0;
}
KVT_EXPORT int nixl_capi_register_mem(void*, void*, void* options) {
  return record(options == nullptr ? "register without backend" : "register"), 0;
}
KVT_EXPORT int nixl_capi_deregister_mem(void*, void*, void*) { return record("deregister"), 0; }
KVT_EXPORT int nixl_capi_get_local_md(void*, void** data, std::size_t* size) {
  static constexpr char kBlob[] = "opaque";
  *size = sizeof(kBlob) - 1;
  *data = std::malloc(*size);
  std::memcpy(*data, kBlob, *size);
  return 0;
}
// The fake blob of a peer is its name.
KVT_EXPORT int nixl_capi_load_remote_md(void*, const void* data, std::size_t size, char** name) {
  *name = strndup(static_cast<const char*>(data), size);
  return record(std::string("load ") + *name), 0;
}
KVT_EXPORT int nixl_capi_check_remote_md(void*, const char*, void*) { return fake.knows_remote ? 0 : -2; }
KVT_EXPORT int nixl_capi_invalidate_remote_md(void*, const char* name) {
  return record(std::string("invalidate ") + name), 0;
}
KVT_EXPORT int nixl_capi_create_xfer_dlist(int, void** out) { return make(out); }
KVT_EXPORT int nixl_capi_destroy_xfer_dlist(void*) { return 0; }
KVT_EXPORT int nixl_capi_xfer_dlist_add_desc(void*, std::uintptr_t, std::size_t, std::uint64_t) { return 0; }
KVT_EXPORT int nixl_capi_create_xfer_req(void*, int, void*, void*, const char*, void** out, void* options) {
  if (fake.create_request_code != 0) return fake.create_request_code;
  // Requests count from 1 of their own, so that tests can name them.
  static std::uintptr_t last_request = 0;
  *out = reinterpret_cast<void*>(++last_request);
  return record((options == nullptr ? "create without backend " : "create ") + number(*out)), 0;
}
KVT_EXPORT int nixl_capi_post_xfer_req(void*, void* request, void* options) {
  return record((options == nullptr ? "post " : "post with options ") + number(request)), fake.post_code;
}
KVT_EXPORT int nixl_capi_get_xfer_status(void*, void*) { return next_status(); }
KVT_EXPORT int nixl_capi_release_xfer_req(void*, void* request) { return record("release " + number(request)), 0; }
KVT_EXPORT int nixl_capi_destroy_xfer_req(void*) { return 0; }
KVT_EXPORT int nixl_capi_create_notif_map(void** out) { return make(out); }
KVT_EXPORT int nixl_capi_destroy_notif_map(void*) { return 0; }
KVT_EXPORT int nixl_capi_get_notifs(void*, void*, void*) { return 0; }
KVT_EXPORT int nixl_capi_notif_map_size(void*, std::size_t* size) { return *size = 0, 0; }
KVT_EXPORT int nixl_capi_notif_map_clear(void*) { return 0; }
KVT_EXPORT int nixl_capi_gen_notif(void*, const char*, const void*, std::size_t, void*) {
  return fake.takes_messages ? 0 : -2;
}

#endif
