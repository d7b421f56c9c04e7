#include "bounce_simulation.h"

namespace kvt::test {
namespace {

TEST(BounceSimulation, WithoutFaultsEverySliceArrivesAndNothingIsLeft) {
  std::size_t checked = 0;
  std::uint64_t released = 0;
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    Simulation simulation(seed, {}, 2 + seed % 2, 6);
    ASSERT_NO_FATAL_FAILURE(simulation.run());
    ASSERT_NO_FATAL_FAILURE(simulation.finish(true));
    checked += simulation.bytes_checked;
    released += simulation.released();
  }
  EXPECT_GT(checked, 50000U);
  EXPECT_GT(released, 150U);
}

TEST(BounceSimulation, ReorderedAndDoubledFramesChangeNothing) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    Simulation simulation(seed, {.twice = 0.2, .reorders = true}, 2, 6);
    ASSERT_NO_FATAL_FAILURE(simulation.run());
    ASSERT_NO_FATAL_FAILURE(simulation.finish(true));
  }
}

TEST(BounceSimulation, WithFaultsEveryByteIsRightOrTheSliceFailed) {
  std::size_t transferred = 0;
  std::size_t slices = 0;
  std::uint64_t quarantined = 0;
  std::uint64_t late = 0;
  std::uint64_t lost = 0;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 mix(seed * 7919);
    const auto some = [&mix](double most) {
      return mix() % 2 == 0 ? 0.0 : most * static_cast<double>(mix() % 100) / 100;
    };
    const Faults faults{.lose = some(0.1),
                        .twice = some(0.2),
                        .fail_write = some(0.2),
                        .fail_gather = some(0.05),
                        .fail_scatter = some(0.05),
                        .cancel_slice = some(0.5),
                        .end_early = some(0.5),
                        .vanish = some(1.0),
                        .reorders = mix() % 2 == 0};
    Simulation simulation(seed, faults, 2 + seed % 3, 5);
    ASSERT_NO_FATAL_FAILURE(simulation.run());
    ASSERT_NO_FATAL_FAILURE(simulation.finish(false));
    transferred += simulation.transferred();
    slices += simulation.slice_count();
    quarantined += simulation.quarantined();
    late += simulation.drained_late();
    lost += simulation.lost();
  }
  // The faults must not be so many that nothing is tested, nor so few.
  EXPECT_GT(transferred, slices / 4);
  EXPECT_LT(transferred, slices * 9 / 10);
  EXPECT_GT(quarantined, 50U);
  EXPECT_GT(late, 0U);
  EXPECT_GT(lost, 0U);
}

}  // namespace
}  // namespace kvt::test
