#include "addon/arguments.h"

#include <cmath>

namespace kvt {
namespace {

constexpr double kMaxSafeInteger = 9007199254740991.0;

}  // namespace

Napi::Error to_error(Napi::Env env, const Status& status) {
  Napi::Error error = Napi::Error::New(env, status.message());
  error.Set("status", Napi::Number::New(env, static_cast<double>(status.code())));
  return error;
}

void throw_status(Napi::Env env, const Status& status) { throw to_error(env, status); }

void throw_argument(Napi::Env env, const std::string& message) {
  throw_status(env, Status(StatusCode::kInvalidArgument, message));
}

std::uint64_t to_size(Napi::Env env, double value, const char* what) {
  if (!(value >= 0 && value <= kMaxSafeInteger) || value != std::floor(value)) {
    throw_argument(env, std::string(what) + " must be a whole number from 0 to 2^53 - 1");
  }
  return static_cast<std::uint64_t>(value);
}

std::int64_t to_integer(Napi::Env env, double value, const char* what) {
  if (!(value >= -kMaxSafeInteger && value <= kMaxSafeInteger) || value != std::floor(value)) {
    throw_argument(env, std::string(what) + " must be a safe integer");
  }
  return static_cast<std::int64_t>(value);
}

double to_number(const Napi::CallbackInfo& info, std::size_t index, const char* what) {
  if (!info[index].IsNumber()) throw_argument(info.Env(), std::string(what) + " must be a number");
  return info[index].As<Napi::Number>().DoubleValue();
}

std::string to_text(const Napi::CallbackInfo& info, std::size_t index, const char* what) {
  if (!info[index].IsString()) throw_argument(info.Env(), std::string(what) + " must be a string");
  return info[index].As<Napi::String>().Utf8Value();
}

}  // namespace kvt
