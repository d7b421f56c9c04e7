#include "addon/capabilities.h"

#include <string>
#include <vector>

#include "addon/abi_version.h"
#include "addon/arguments.h"
#include "addon/promise_worker.h"
#include "device/cuda_driver.h"
#include "device/kernel_image.h"
#include "transport/nixl_library.h"
#include "transport/nixl_options.h"

namespace kvt {
namespace {

struct Findings {
  CudaProbe cuda;
  NixlProbe nixl;
};

Napi::Value text_or_null(Napi::Env env, const std::string& text) {
  return text.empty() ? env.Null() : Napi::Value(Napi::String::New(env, text));
}

Napi::Array to_array(Napi::Env env, const std::vector<std::string>& texts) {
  const Napi::Array out = Napi::Array::New(env, texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    out.Set(static_cast<std::uint32_t>(i), Napi::String::New(env, texts[i]));
  }
  return out;
}

Napi::Object describe(Napi::Env env, const CudaDevice& device) {
  const Napi::Object out = Napi::Object::New(env);
  out.Set("name", Napi::String::New(env, device.name));
  out.Set("uuid", Napi::String::New(env, device.uuid));
  out.Set("computeCapability", Napi::Number::New(env, device.architecture / 10.0));
  out.Set("multiprocessorCount", Napi::Number::New(env, device.multiprocessor_count));
  out.Set("memoryBytes", Napi::Number::New(env, static_cast<double>(device.memory_bytes)));
  out.Set("inboundWritesNeedFlush", Napi::Boolean::New(env, device.inbound_writes_need_flush));
  const Napi::Array peers = Napi::Array::New(env, device.peers.size());
  for (std::size_t i = 0; i < device.peers.size(); ++i) {
    peers.Set(static_cast<std::uint32_t>(i), Napi::Number::New(env, device.peers[i]));
  }
  out.Set("peerAccess", peers);
  const Napi::Array links = Napi::Array::New(env, device.links.size());
  for (std::size_t i = 0; i < device.links.size(); ++i) {
    links.Set(static_cast<std::uint32_t>(i), Napi::Number::New(env, static_cast<double>(device.links[i])));
  }
  out.Set("peerLinks", links);
  return out;
}

Napi::Value to_object(Napi::Env env, const Findings& findings) {
  const Napi::Object addon = Napi::Object::New(env);
  addon.Set("abiVersion", Napi::Number::New(env, kAddonAbiVersion));
  addon.Set("napiVersion", Napi::Number::New(env, NAPI_VERSION));
  addon.Set("version", Napi::String::New(env, KVT_PACKAGE_VERSION));

  const Napi::Object host = Napi::Object::New(env);
  host.Set("available", Napi::Boolean::New(env, true));
  host.Set("reason", env.Null());

  const Napi::Object cuda = Napi::Object::New(env);
  cuda.Set("available", Napi::Boolean::New(env, findings.cuda.is_available));
  cuda.Set("reason", text_or_null(env, findings.cuda.reason));
  cuda.Set("library", text_or_null(env, findings.cuda.library));
  cuda.Set("driverVersion", findings.cuda.driver_version == 0
                                ? env.Null()
                                : Napi::Value(Napi::Number::New(env, findings.cuda.driver_version)));
  cuda.Set("deviceCount", Napi::Number::New(env, findings.cuda.device_count));
  cuda.Set("hasKernels", Napi::Boolean::New(env, !kernel_image().empty()));
  const Napi::Array devices = Napi::Array::New(env, findings.cuda.devices.size());
  for (std::size_t i = 0; i < findings.cuda.devices.size(); ++i) {
    devices.Set(static_cast<std::uint32_t>(i), describe(env, findings.cuda.devices[i]));
  }
  cuda.Set("devices", devices);

  const Napi::Object nixl = Napi::Object::New(env);
  nixl.Set("available", Napi::Boolean::New(env, findings.nixl.available));
  nixl.Set("reason", text_or_null(env, findings.nixl.reason));
  nixl.Set("path", text_or_null(env, findings.nixl.path));
  nixl.Set("version", text_or_null(env, findings.nixl.version));
  nixl.Set("tried", to_array(env, findings.nixl.tried));
  nixl.Set("notes", to_array(env, findings.nixl.notes));

  const Napi::Object out = Napi::Object::New(env);
  out.Set("addon", addon);
  out.Set("host", host);
  out.Set("cuda", cuda);
  out.Set("nixl", nixl);
  return out;
}

}  // namespace

Napi::Value query_capabilities(const Napi::CallbackInfo& info) {
  NixlOptions options;
  options.library_path = to_text(info, 0, "the NIXL library");
  options.package_tree = to_text(info, 1, "the NIXL package tree");
  // On this thread, because JavaScript writes the environment here too.
  prepare_process_for_nixl();
  return PromiseWorker<Findings>::run(
      info.Env(),
      [options](Findings* found) {
        *found = Findings{probe_cuda(), probe_nixl(options)};
        return Status::ok();
      },
      to_object);
}

}  // namespace kvt
