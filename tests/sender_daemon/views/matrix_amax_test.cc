// The amax that follows steps is the one that all elements have.
#include "sender_daemon/views/matrix_amax.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/base/instruction_set.h"
#include "common/quantise/quantise.h"
#include "sender_daemon/views/steps.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tests/common/delta/samples.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// A trainer with one stack of two matrices, of which a block has parts of both, and a view of it.
struct Scene {
  ThreadPool pool = ThreadPool(2);
  RankStatePtr trainer = MakeState(
      MakeLayout({{.tensor = {.name = "a.weight", .dtype = DType::kBF16, .shape = {2, 150, 512}}}}),
      kNoLimits);
  Weights weights = {std::vector<std::byte>(uint64_t{2} * 150 * 512 * 2)};
  std::unique_ptr<ViewSnapshot> view;
  uint64_t version = 0;
  CapturedVersion captured;

  explicit Scene(const std::string& name) {
    Publish();
    view = ViewSnapshot::Create(name, trainer, kNoLimits).value();
  }
  void Set(uint64_t element, uint16_t bits) { StoreLe(weights[0].data() + element * 2, bits); }
  void Publish() { captured = CaptureAll(*trainer, pool, ++version, weights); }
  void Measure() { view->Measure(WeightVersion(version), &captured, pool); }
  void Capture() { view->CaptureVersion(WeightVersion(version), &captured, pool); }
  std::vector<uint16_t> Measured() {
    const std::span<const uint16_t> amax =
        view->Measure(WeightVersion(version), &captured, pool).OfPart(0);
    return {amax.begin(), amax.end()};
  }
  std::vector<uint16_t> Right() {
    return quantise::MatrixAmax(ActiveInstructionSet(), *view->view().slices()[0].grid, weights[0]);
  }
};

TEST_CASE("no step makes a magnitude larger than by its length", "[views]") {
  samples::Random random(samples::TestSeed());
  for (uint32_t before = 0; before < 0x10000; ++before) {
    for (int round = 0; round < 64; ++round) {
      // Short steps and any.
      const auto step = static_cast<uint16_t>(round < 33 ? round - 16 : random.Next());
      const uint16_t after =
          Element<uint16_t, Mapping::kFloat>::FromStep(static_cast<uint16_t>(before), step);
      if (Magnitude(after) > Magnitude(static_cast<uint16_t>(before)) + StepLength(step)) {
        FAIL("from " << before << " by " << step << " to " << after);
      }
      if (BeforeStep(after, step) != before) FAIL("from " << before << " by " << step);
    }
  }
}

TEST_CASE("an amax that follows steps is that of all elements", "[views]") {
  samples::Random random(samples::TestSeed());
  const std::string name = GENERATE("nvfp4/modelopt", "nvfp4/compressed-tensors", "fp8-tensor/vllm",
                                    "fp8-tensor/compressed-tensors");
  // If the view lacks versions, the amax of its tiles is an older version's.
  const bool captures = GENERATE(true, false);
  CAPTURE(name, captures, samples::TestSeed());
  Scene scene(name);
  for (int round = 0; round < 60; ++round) {
    for (uint64_t count = random.Below(300); count > 0; --count) {
      const uint64_t element = random.Below(scene.weights[0].size() / 2);
      const auto old = LoadLe<uint16_t>(scene.weights[0].data() + element * 2);
      // Most take one step, some come near the largest one or go away from it.
      const uint16_t amax = scene.Right()[element / (150 * 512)];
      const uint64_t kind = random.Below(100);
      const uint64_t bits = kind == 0   ? amax + random.Below(3) - 1
                            : kind == 1 ? random.Below(0x10000)
                            : kind == 2 ? 0x3C00 + random.Below(0x100)
                                        : old + random.Below(3) - 1;
      scene.Set(element, static_cast<uint16_t>(bits));
    }
    for (uint64_t matrix = 0; matrix < 2 && round % 5 == 4; ++matrix) {  // the largest go
      const uint16_t amax = scene.Right()[matrix];
      for (uint64_t i = matrix * 150 * 512; i < (matrix + 1) * 150 * 512; ++i) {
        const auto bits = LoadLe<uint16_t>(scene.weights[0].data() + i * 2);
        if (Magnitude(bits) == amax) scene.Set(i, 0x3C00);
      }
    }
    scene.Publish();
    REQUIRE(scene.Measured() == scene.Right());
    if (captures) scene.Capture();
  }
}

TEST_CASE("tiles of an older version tell nothing of an amax", "[views]") {
  Scene scene("nvfp4/modelopt");
  scene.Set(0, 0x3F00);
  scene.Set(100, 0x3C00);
  scene.Publish();
  scene.Capture();
  scene.Set(100, 0x3EFF);
  scene.Publish();
  scene.Measure();  // the view itself lacks this version
  scene.Set(100, 0x3F10);
  scene.Publish();
  CHECK(scene.Measured() == std::vector<uint16_t>{0x3F10, 0});
  scene.Capture();
  scene.Set(100, 0x3F08);
  scene.Publish();
  CHECK(scene.Measured() == std::vector<uint16_t>{0x3F08, 0});
}

}  // namespace
}  // namespace dws
