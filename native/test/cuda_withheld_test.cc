#include "device/cuda_withheld.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvt {
namespace {

cuda::Result every_peer(int* can, cuda::Device, cuda::Device) {
  *can = 1;
  return cuda::kSuccess;
}
cuda::Result exports_descriptor(void*, cuda::AllocationHandle, int, unsigned long long) { return cuda::kSuccess; }
cuda::Result exports_handle(cuda::IpcMemoryHandle*, cuda::DevicePointer) { return cuda::kSuccess; }

class CudaWithheld : public testing::Test {
 protected:
  void SetUp() override {
    api_.cuDeviceCanAccessPeer = &every_peer;
    api_.cuMemExportToShareableHandle = &exports_descriptor;
    api_.cuIpcGetMemHandle = &exports_handle;
  }
  void TearDown() override { ::unsetenv("KV_TRANSCEIVER_CUDA_WITHOUT"); }

  Status with(const char* value) {
    ::setenv("KV_TRANSCEIVER_CUDA_WITHOUT", value, 1);
    return withhold_cuda_features(&api_);
  }

  CudaApi api_;
};

TEST_F(CudaWithheld, NothingIsWithheldByDefault) {
  ASSERT_TRUE(withhold_cuda_features(&api_).is_ok());
  ASSERT_TRUE(with("").is_ok());
  int can = 0;
  EXPECT_EQ(api_.cuDeviceCanAccessPeer(&can, 0, 1), cuda::kSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(api_.cuMemExportToShareableHandle(nullptr, 0, 0, 0), cuda::kSuccess);
}

TEST_F(CudaWithheld, WhatIsListedIsRefusedAndNothingElse) {
  ASSERT_TRUE(with("peer-access,ipc-handles").is_ok());
  int can = 1;
  EXPECT_EQ(api_.cuDeviceCanAccessPeer(&can, 0, 1), cuda::kSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(api_.cuIpcGetMemHandle(nullptr, 0), cuda::kErrorNotSupported);
  EXPECT_EQ(api_.cuMemExportToShareableHandle(nullptr, 0, 0, 0), cuda::kSuccess);
  ASSERT_TRUE(with("descriptors").is_ok());
  EXPECT_EQ(api_.cuMemExportToShareableHandle(nullptr, 0, 0, 0), cuda::kErrorNotSupported);
}

TEST_F(CudaWithheld, AnotherNameIsRefusedWithTheOnesThereAre) {
  for (const char* value : {"nvlink", "peer-access,", ",", "peer-access,,descriptors", "peer access"}) {
    const Status status = with(value);
    if (std::string(value) == "peer-access,") {
      EXPECT_TRUE(status.is_ok());
      continue;
    }
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
    EXPECT_NE(status.message().find("peer-access, descriptors or ipc-handles"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvt
