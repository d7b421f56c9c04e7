// The bare copy that benches measure paths against, over a stand-in for the driver. Needs no GPU.
#include "device/bare_copy.h"
#include "fake_device_fixture.h"

namespace kvt::test {
namespace {

class FakeBareCopy : public FakeDeviceTest {
 protected:
  static Region region(const DevicePool& pool, std::size_t offset, std::size_t size) {
    return {pool.base() + offset, size, MemoryKind::kDevice, 0};
  }
};

TEST_F(FakeBareCopy, MovesTheBytesThatItTimesAndNoOthers) {
  std::unique_ptr<BareCopy> copy;
  KVT_ASSERT_OK(BareCopy::open(context_, context_, kPool, &copy));
  fill(region(copy->source(), 0, kPool), 0x37);
  BareCopy::Times times;
  KVT_ASSERT_OK(copy->time(kPool / 2, &times));
  EXPECT_TRUE(is_filled(region(copy->destination(), 0, kPool / 2), 0x37));
  EXPECT_TRUE(is_filled(region(copy->destination(), kPool / 2, kPool / 2), 0));
  EXPECT_GT(times.host_ns, 0);
  // The stand-in's events are a millisecond apart.
  EXPECT_EQ(times.device_us, 1000);
  KVT_ASSERT_OK(copy->time(kPool, &times));
  EXPECT_TRUE(is_filled(region(copy->destination(), 0, kPool), 0x37));
}

TEST_F(FakeBareCopy, RefusesBytesThatAreNotThere) {
  std::unique_ptr<BareCopy> copy;
  KVT_ASSERT_OK(BareCopy::open(context_, context_, kPool, &copy));
  BareCopy::Times times;
  EXPECT_EQ(copy->time(0, &times).code(), StatusCode::kInvalidArgument);
  const Status status = copy->time(kPool + 1, &times);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(kPool)), std::string::npos) << status.message();
}

TEST_F(FakeBareCopy, GivesBackWhatItHadWhenTheRestDoesNotFit) {
  const std::size_t before = free_bytes();
  FakeCuda::order({"fail cuStreamCreateWithPriority 2"});
  std::unique_ptr<BareCopy> copy;
  EXPECT_EQ(BareCopy::open(context_, context_, kPool, &copy).code(), StatusCode::kResource);
  EXPECT_EQ(copy, nullptr);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(FakeBareCopy, ALostDeviceIsAnErrorAndNotAWait) {
  std::unique_ptr<BareCopy> copy;
  KVT_ASSERT_OK(BareCopy::open(context_, context_, kPool, &copy));
  FakeCuda::order({"lost"});
  BareCopy::Times times;
  EXPECT_EQ(copy->time(kPool, &times).code(), StatusCode::kDeviceLost);
}

}  // namespace
}  // namespace kvt::test
