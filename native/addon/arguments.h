#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "addon/napi_setup.h"
#include "core/status.h"

namespace kvt {

// A JS Error that carries the status code in `status`; src/agent/native-error.ts makes the typed error of it.
Napi::Error to_error(Napi::Env env, const Status& status);
[[noreturn]] void throw_status(Napi::Env env, const Status& status);
[[noreturn]] void throw_argument(Napi::Env env, const std::string& message);

// Checked conversions of what JS passed; each throws kInvalidArgument naming `what`.
// Whole numbers only, because every address, size and id crosses as a double.
std::uint64_t to_size(Napi::Env env, double value, const char* what);    // 0 .. 2^53 - 1
std::int64_t to_integer(Napi::Env env, double value, const char* what);  // -(2^53 - 1) .. 2^53 - 1
double to_number(const Napi::CallbackInfo& info, std::size_t index, const char* what);
std::string to_text(const Napi::CallbackInfo& info, std::size_t index, const char* what);

template <typename Array>
Array to_array(const Napi::CallbackInfo& info, std::size_t index, napi_typedarray_type type, const char* what) {
  const Napi::Value value = info[index];
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) {
    throw_argument(info.Env(), std::string(what) + " must be a typed array of its kind");
  }
  return value.As<Array>();
}

}  // namespace kvt
