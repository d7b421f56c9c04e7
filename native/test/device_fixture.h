#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_context.h"
#include "device/cuda_driver.h"
#include "device/cuda_stream.h"
#include "device/device_buffer.h"
#include "device/device_pool.h"
#include "device/page_kernels.h"

#define KVT_ASSERT_OK(expression)                            \
  do {                                                       \
    const ::kvt::Status kvt_status = (expression);           \
    ASSERT_TRUE(kvt_status.is_ok()) << kvt_status.message(); \
  } while (false)

namespace kvt {

// GPU tests skip where there is no GPU, loudly, and fail instead where KV_TRANSCEIVER_REQUIRE names cuda.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.is_available) {
      const char* required = std::getenv("KV_TRANSCEIVER_REQUIRE");
      if (required != nullptr && std::string(required).find("cuda") != std::string::npos) {
        FAIL() << "CUDA is required: " << probe.reason;
      }
      GTEST_SKIP() << "needs a GPU: " << probe.reason;
    }
    KVT_ASSERT_OK(CudaContext::retain(0, &context_));
    KVT_ASSERT_OK(CudaStream::create(context_, StreamPriority::kLow, &stream_));
  }

  const CudaApi& api() const { return context_->api(); }

  std::unique_ptr<DevicePool> pool(std::size_t size) const {
    std::unique_ptr<DevicePool> made;
    const Status status = DevicePool::allocate(context_, size, &made);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return made;
  }

  // Over `stream`, whose device must have access to the memory; null: this fixture's own.
  void upload(std::uintptr_t to, const std::vector<std::byte>& from, const CudaStream* stream = nullptr) const {
    const CudaStream& on = stream == nullptr ? stream_ : *stream;
    const CurrentContext current(*on.context());
    KVT_ASSERT_OK(api().check(api().cuMemcpyHtoDAsync(to, from.data(), from.size(), on.handle()), "upload"));
    KVT_ASSERT_OK(on.synchronize());
  }

  std::vector<std::byte> download(std::uintptr_t from, std::size_t bytes, const CudaStream* stream = nullptr) const {
    const CudaStream& on = stream == nullptr ? stream_ : *stream;
    const CurrentContext current(*on.context());
    std::vector<std::byte> out(bytes);
    EXPECT_TRUE(api().check(api().cuMemcpyDtoHAsync(out.data(), from, bytes, on.handle()), "download").is_ok());
    EXPECT_TRUE(on.synchronize().is_ok());
    return out;
  }

  std::shared_ptr<const CudaContext> context_;
  CudaStream stream_;
};

}  // namespace kvt
