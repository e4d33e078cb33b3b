// A view that is kept up to date by lists of changes is, to the bit, the one that is made of the
// newest weights at once; its deltas lead from each version to the next.
#include "sender_daemon/views/view_snapshot.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/common/delta/samples.h"
#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// Squares that meet edges, rows that blocks divide, a stack, cuts, and tensors that are only
// copied.
RankLayout TrainerLayout() {
  return MakeLayout(
      {{.tensor = {.name = "a.weight", .dtype = DType::kBF16, .shape = {260, 1024}}},
       {.tensor = {.name = "b.weight",
                   .dtype = DType::kBF16,
                   .shape = {300, 384},
                   .cuts = {{0, {128, 256}}}},
        .cells = {{0, 3}}},
       {.tensor = {.name = "c.weight", .dtype = DType::kBF16, .shape = {3, 130, 256}}},
       {.tensor = {.name = "e.down.weight", .dtype = DType::kBF16, .shape = {64, 128}}},
       {.tensor = {.name = "e.gate.weight",
                   .dtype = DType::kBF16,
                   .shape = {4, 96, 128},
                   .cuts = {{0, {1, 2}}, {1, {32}}}},
        .cells = {{0, 3}, {0, 2}}},
       {.tensor = {.name = "e.up.weight",
                   .dtype = DType::kBF16,
                   .shape = {4, 64, 256},
                   .cuts = {{0, {1, 2}}}},
        .cells = {{0, 3}}},
       {.tensor = {.name = "head.weight", .dtype = DType::kBF16, .shape = {200, 512}}},
       {.tensor = {.name = "n", .dtype = DType::kF32, .shape = {5'000}}},
       {.tensor = {.name = "o.down_proj",
                   .dtype = DType::kBF16,
                   .shape = {2, 96, 100},
                   .cuts = {{1, {32}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "o.gate_up_proj",
                   .dtype = DType::kBF16,
                   .shape = {3, 256, 300},
                   .cuts = {{0, {1}}, {2, {140}}}},
        .cells = {{0, 2}, {0, 2}}}});
}

uint16_t Near(samples::Random& random, double hostile) {
  constexpr uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF7F,
                                   0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x0080, 0x4100};
  if (random.Chance(hostile)) return kHostile[random.Below(std::size(kHostile))];
  return static_cast<uint16_t>((0x3C80 - random.Below(0x300)) | (random.Next() & 0x8000));
}

Weights Initial(const RankLayout& layout, samples::Random& random) {
  Weights weights;
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    std::vector<std::byte> bytes(slice.size_bytes());
    for (size_t at = 0; at < bytes.size(); at += 2) {
      StoreLe(bytes.data() + at, Near(random, 1e-4));
    }
    weights.push_back(std::move(bytes));
  }
  return weights;
}

// Steps of one, like an optimiser's, and some that move the largest magnitudes up and down.
void Change(Weights& weights, double density, double wild, samples::Random& random) {
  for (std::vector<std::byte>& slice : weights) {
    for (size_t at = 0; at < slice.size(); at += 2) {
      if (!random.Chance(density)) continue;
      const auto old = LoadLe<uint16_t>(slice.data() + at);
      const uint16_t step = random.Chance(0.5) ? old + 1 : old - 1;
      StoreLe(slice.data() + at, random.Chance(wild) ? Near(random, 0.3) : step);
    }
  }
}

std::vector<std::string> ViewNames() {
  std::vector<std::string> names;
  for (const quantise::Recipe& recipe : quantise::AllRecipes()) {
    names.push_back(std::string(recipe.id) + ",except=head.*");
    if (recipe.has_tensor_scale) {
      names.back() += ",share=gate+up";
    } else if (recipe.tile_rows > 1) {
      names.back() += ",except=e.gate.*";  // it is cut inside a tile
    }
  }
  return names;
}

std::unique_ptr<ViewSnapshot> MakeView(const std::string& name, const RankStatePtr& trainer) {
  auto view = ViewSnapshot::Create(name, trainer, kNoLimits);
  DWS_CHECK(view.ok());
  return *std::move(view);
}

Weights Whole(const std::string& name, const RankStatePtr& trainer, ThreadPool& pool) {
  const auto view = MakeView(name, trainer);
  view->CaptureVersion(*trainer->snapshot->version(), nullptr, pool);
  return SnapshotWeights(*view->state());
}

// A trainer, and a view that has its first version.
struct Scene {
  samples::Random random = samples::Random(samples::TestSeed());
  ThreadPool pool = ThreadPool(2);
  std::string name;
  RankStatePtr trainer;
  Weights weights;
  std::unique_ptr<ViewSnapshot> view;

  explicit Scene(std::string view_name, const RankLayout& layout = TrainerLayout())
      : name(std::move(view_name)),
        trainer(MakeState(layout, kNoLimits)),
        weights(Initial(layout, random)) {
    CaptureAll(*trainer, pool, 1, weights);
    view = MakeView(name, trainer);
    view->CaptureVersion(WeightVersion(1), nullptr, pool);
  }
  // Captures both, the view with the trainer's changes.
  CapturedVersion CaptureBoth(uint64_t version) {
    const CapturedVersion captured = CaptureAll(*trainer, pool, version, weights);
    return view->CaptureVersion(WeightVersion(version), &captured, pool);
  }
  bool IsAsMadeAtOnce() { return SnapshotWeights(*view->state()) == Whole(name, trainer, pool); }
};

TEST_CASE("a view that follows steps is the one made of the newest weights", "[views]") {
  Scene scene(GENERATE(from_range(ViewNames())));
  CAPTURE(scene.name, samples::TestSeed());
  const RankStatePtr state = scene.view->state();
  Weights before = SnapshotWeights(*state);
  REQUIRE((before == Whole(scene.name, scene.trainer, scene.pool)));
  uint64_t version = 1;
  for (const double density : {0.0, 0.00002, 0.001, 0.01, 0.03, 0.2, 0.01, 1.0, 0.01, 0.0005}) {
    for (const double wild : {0.0, 0.02, 0.5}) {
      ++version;
      Change(scene.weights, density, wild, scene.random);
      const RetainedVersionPtr sealed =
          Seal({.state = state, .captured = scene.CaptureBoth(version)});
      state->log->Append(sealed);
      INFO("version " << version << ", density " << density);
      const Weights after = SnapshotWeights(*state);
      REQUIRE((after == Whole(scene.name, scene.trainer, scene.pool)));
      REQUIRE((sealed->after == DigestsOf(state->layout(), after)));
      if (sealed->base.has_value()) {
        ApplyObject(state->layout(), sealed->object, before);
        REQUIRE((before == after));
      }
      before = after;
    }
  }
}

TEST_CASE("a view is right again after a trainer's full version", "[views]") {
  Scene scene(GENERATE("fp8-block128/deepseek,except=e.gate.*", "nvfp4/modelopt",
                       "mxfp4-gpt-oss/modelopt"));
  const RankLayout& layout = scene.trainer->layout();
  for (uint64_t version = 2; version < 6; ++version) {
    Change(scene.weights, 0.01, 0.1, scene.random);
    Capture capture(*scene.trainer->snapshot, scene.pool, WeightVersion(version),
                    DeltaProfile::kFast, version % 2 == 0 ? FullCause::kAsked : FullCause::kNone);
    WeightsSource source(layout, scene.weights);
    REQUIRE(capture.Blocks(AllBlocks(layout), source).ok());
    const CapturedVersion captured = capture.Finish().value();
    REQUIRE(captured.base.has_value() == (version % 2 == 1));
    scene.view->CaptureVersion(WeightVersion(version), &captured, scene.pool);
    REQUIRE(scene.IsAsMadeAtOnce());
  }
}

TEST_CASE("a flipped bit of either snapshot stops no capture, and is mended", "[views]") {
  Scene scene(GENERATE("fp8-channel/vllm,except=head.*", "nvfp4/modelopt"));
  const RankStatePtr view = scene.view->state();
  for (uint64_t version = 2; version < 30; ++version) {
    for (const RankStatePtr& state : {scene.trainer, view}) {
      const RankSlice slice(
          static_cast<uint32_t>(scene.random.Below(state->layout().slice_count())));
      const MutableByteSpan bytes = state->snapshot->SliceBytes(slice);
      bytes[scene.random.Below(bytes.size())] ^= std::byte{0x40};
      // Found at times; else the next version finds it, where its own change is.
      if (scene.random.Chance(0.5)) state->snapshot->SetDistrust(slice, true);
    }
    Change(scene.weights, 0.02, 0.1, scene.random);
    scene.CaptureBoth(version);
  }
  for (uint32_t s = 0; s < view->layout().slice_count(); ++s) {
    view->snapshot->SetDistrust(RankSlice(s), true);
  }
  scene.CaptureBoth(30);
  CHECK(scene.IsAsMadeAtOnce());
}

TEST_CASE("packed codes of many blocks of the trainer's are in the right place", "[views]") {
  Scene scene(
      GENERATE("int4-g32/amax7.5", "nvfp4/compressed-tensors"),
      MakeLayout(
          {{.tensor = {.name = "a.weight", .dtype = DType::kBF16, .shape = {1'300, 1'024}}}}));
  for (uint64_t version = 2; version < 6; ++version) {
    Change(scene.weights, 0.005, version % 2 == 0 ? 0 : 0.01, scene.random);
    scene.CaptureBoth(version);
    REQUIRE(scene.IsAsMadeAtOnce());
  }
}

TEST_CASE("a damaged view is mended by the next version", "[views]") {
  Scene scene("int4-g32/amax7");
  const RankStatePtr view = scene.view->state();
  const RankSlice damaged = view->layout().Find("a.weight_packed", 0).value();
  view->snapshot->SliceBytes(damaged)[77] ^= std::byte{1};
  view->snapshot->SetDistrust(damaged, true);
  Change(scene.weights, 0.0001, 0, scene.random);
  scene.CaptureBoth(2);
  CHECK(scene.IsAsMadeAtOnce());
  CHECK_FALSE(view->snapshot->distrusts(damaged));
}

}  // namespace
}  // namespace dws
