// The addon's entry point: one instance per Node environment, nothing shared between them.

#include "addon/abi_version.h"
#include "addon/capabilities.h"
#include "addon/content_functions.h"
#include "addon/copy_functions.h"
#include "addon/device_functions.h"
#include "addon/environment.h"
#include "addon/napi_setup.h"
#include "addon/native_agent.h"
#include "addon/native_bare_copy.h"
#include "addon/native_gemm.h"
#include "addon/native_nixl_loop.h"
#include "addon/page_move_functions.h"
#include "addon/plan_functions.h"

namespace kvt {

class KvTransceiverAddon final : public Napi::Addon<KvTransceiverAddon> {
 public:
  KvTransceiverAddon(Napi::Env env, Napi::Object exports) : environment_(env) {
    DefineAddon(exports, {
                             InstanceValue("abiVersion", Napi::Number::New(env, kAddonAbiVersion)),
                             InstanceValue("NativeAgent", NativeAgent::define(env)),
                             InstanceValue("GemmWorkload", NativeGemm::define(env)),
                             InstanceValue("BareCopy", NativeBareCopy::define(env)),
                             InstanceValue("NixlLoop", NativeNixlLoop::define(env)),
                             InstanceMethod("capabilities", &KvTransceiverAddon::capabilities),
                             InstanceMethod("chainTokenSeeds", &KvTransceiverAddon::chain_token_seeds),
                             InstanceMethod("fillContent", &KvTransceiverAddon::fill_content),
                             InstanceMethod("verifyContent", &KvTransceiverAddon::verify_content),
                             InstanceMethod("plainCopyNs", &KvTransceiverAddon::plain_copy_ns),
                             InstanceMethod("movePages", &KvTransceiverAddon::move_pages),
                             InstanceMethod("expandPlan", &KvTransceiverAddon::expand),
                             InstanceMethod("openDevice", &KvTransceiverAddon::open_gpu),
                             InstanceMethod("createStream", &KvTransceiverAddon::create_gpu_stream),
                             InstanceMethod("closeStream", &KvTransceiverAddon::close_gpu_stream),
                             InstanceMethod("clearMemory", &KvTransceiverAddon::clear_pool),
                             InstanceMethod("recordDeviceEvent", &KvTransceiverAddon::record_event),
                             InstanceMethod("queryDeviceEvent", &KvTransceiverAddon::query_event),
                             InstanceMethod("failDeviceEvent", &KvTransceiverAddon::fail_event),
                             InstanceMethod("releaseDeviceEvent", &KvTransceiverAddon::release_event),
                             InstanceMethod("readMemory", &KvTransceiverAddon::read_pool),
                             InstanceMethod("writeMemory", &KvTransceiverAddon::write_pool),
                         });
  }

  Environment& environment() { return environment_; }

 private:
  Napi::Value capabilities(const Napi::CallbackInfo& info) { return query_capabilities(info); }
  Napi::Value chain_token_seeds(const Napi::CallbackInfo& info) { return make_token_seeds(info); }
  Napi::Value fill_content(const Napi::CallbackInfo& info) { return start_fill(info, environment_); }
  Napi::Value verify_content(const Napi::CallbackInfo& info) { return start_verify(info, environment_); }
  Napi::Value plain_copy_ns(const Napi::CallbackInfo& info) { return start_plain_copy(info, environment_); }
  Napi::Value move_pages(const Napi::CallbackInfo& info) { return start_page_moves(info, environment_); }
  Napi::Value expand(const Napi::CallbackInfo& info) { return expand_plan(info); }
  Napi::Value open_gpu(const Napi::CallbackInfo& info) { return open_device(info, &environment_); }
  Napi::Value create_gpu_stream(const Napi::CallbackInfo& info) { return create_stream(info, &environment_); }
  void close_gpu_stream(const Napi::CallbackInfo& info) { close_stream(info, &environment_); }
  void clear_pool(const Napi::CallbackInfo& info) { clear_memory(info, &environment_); }
  Napi::Value record_event(const Napi::CallbackInfo& info) { return record_device_event(info, &environment_); }
  Napi::Value query_event(const Napi::CallbackInfo& info) { return query_device_event(info, &environment_); }
  void fail_event(const Napi::CallbackInfo& info) { fail_device_event(info, &environment_); }
  void release_event(const Napi::CallbackInfo& info) { release_device_event(info, &environment_); }
  Napi::Value read_pool(const Napi::CallbackInfo& info) { return read_memory(info, environment_); }
  Napi::Value write_pool(const Napi::CallbackInfo& info) { return write_memory(info, environment_); }

  Environment environment_;
};

Environment* environment_of(Napi::Env env) { return &env.GetInstanceData<KvTransceiverAddon>()->environment(); }

using Module = KvTransceiverAddon;
NODE_API_ADDON(Module)

}  // namespace kvt
