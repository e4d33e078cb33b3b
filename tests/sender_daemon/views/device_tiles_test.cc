// A view whose tiles a GPU quantises is, to the bit, the view that the host makes, also when the
// GPU is short of memory, fails, or has a damaged copy of the weights.
#include "sender_daemon/views/device_tiles.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/transport/same_host/gpu_copy_places.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tests/common/delta/samples.h"
#include "tests/fakes/cuda/model/fake_clock.h"
#include "tests/fakes/log_lines.h"
#include "tests/sender_daemon/gpu_weights.h"
#include "tests/sender_daemon/object_apply.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr uint64_t kMiB = uint64_t{1} << 20;
// Small slices go to the GPU too, and large ones take several windows.
constexpr DeviceTiles::Options kSmall{.elements_min = 1,
                                      .window_bytes = DeviceTiles::kWindowBytesMin};

// A stack of several windows, squares that meet edges, cuts, and what is only copied; or columns.
RankLayout Layout(bool columns) {
  if (columns) {
    return MakeLayout(
        {{.tensor = {.name = "n", .dtype = DType::kF32, .shape = {5'000}}},
         {.tensor = {.name = "o.down_proj",
                     .dtype = DType::kBF16,
                     .shape = {3, 64, 100},
                     .cuts = {{0, {1}}}},
          .cells = {{0, 2}}},
         {.tensor = {.name = "o.gate_up_proj", .dtype = DType::kBF16, .shape = {2, 1024, 300}}}});
  }
  return MakeLayout(
      {{.tensor = {.name = "a.weight", .dtype = DType::kBF16, .shape = {4, 300, 640}}},
       {.tensor = {.name = "b.weight", .dtype = DType::kBF16, .shape = {261, 515}}},
       {.tensor =
            {.name = "c.weight", .dtype = DType::kBF16, .shape = {512, 256}, .cuts = {{0, {128}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "n", .dtype = DType::kF32, .shape = {5'000}}}});
}

bool IsOfColumns(const std::string& view) { return view.starts_with("mxfp4-gpt-oss"); }

std::vector<std::string> ViewNames() {
  std::vector<std::string> names;
  for (const quantise::Recipe& recipe : quantise::AllRecipes()) {
    const bool any_width = recipe.has_partial_tiles || recipe.is_transposed() ||
                           recipe.tile_columns == quantise::Recipe::kWhole;
    names.push_back(std::string(recipe.id) + (any_width ? "" : ",except=b.weight"));
  }
  return names;
}

// A trainer whose weights lie on a GPU, and a view of them.
struct Scene {
  samples::Random random{samples::TestSeed()};
  ThreadPool pool{2};
  const std::string name;
  const double hostile;  // in a tile with a NaN or an infinity, no other element matters
  const RankStatePtr trainer = MakeState(Layout(IsOfColumns(name)), kNoLimits);
  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  GpuWeights memory{device, trainer->layout()};
  GpuSource source{device, memory, {.window_bytes = kMiB, .arena_bytes = kMiB, .spare_bytes = 0}};
  Weights weights;
  std::unique_ptr<ViewSnapshot> view;
  std::optional<cuda::FakeClock> clock;  // counts the kernels

  explicit Scene(std::string view_name, double hostile_chance = 1e-5)
      : name(std::move(view_name)), hostile(hostile_chance) {
    for (const RankLayout::SliceEntry& slice : trainer->layout().slices()) {
      std::vector<std::byte>& bytes = weights.emplace_back(slice.size_bytes());
      for (size_t at = 0; at < bytes.size(); at += 2) StoreLe(bytes.data() + at, Element());
    }
    view = Make(std::make_shared<DeviceTiles>(trainer, kSmall));
    clock.emplace(cuda::GpuModel::H100());
  }

  uint16_t Element() {
    constexpr uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x7F7F, 0x7F80, 0x7FC0};
    if (random.Chance(hostile)) return kHostile[random.Below(std::size(kHostile))];
    return static_cast<uint16_t>((0x3C80 - random.Below(0x300)) | (random.Next() & 0x8000));
  }
  std::unique_ptr<ViewSnapshot> Make(std::shared_ptr<DeviceTiles> tiles) const {
    auto made = ViewSnapshot::Create(name, trainer, kNoLimits, std::move(tiles));
    INFO(ToString(made.status()));
    REQUIRE(made.ok());
    return *std::move(made);
  }

  // Changes about `density` of the elements, and captures the trainer's version.
  CapturedVersion Publish(uint64_t version, double density) {
    for (std::vector<std::byte>& slice : weights) {
      for (size_t at = 0; at < slice.size(); at += 2) {
        if (random.Chance(density)) StoreLe(slice.data() + at, Element());
      }
    }
    memory.Set(weights);
    Capture capture(*trainer->snapshot, pool, WeightVersion(version));
    REQUIRE(capture.Blocks(AllBlocks(trainer->layout()), source).ok());
    return capture.Finish().value();
  }
  // Captures the view's version of what was published. Returns how many launches quantised it.
  int Follow(const CapturedVersion& trainer_version) {
    (void)clock->TakeLog();
    const RankStatePtr state = view->state();
    Weights before = SnapshotWeights(*state);
    const RetainedVersionPtr sealed =
        Seal({.state = state,
              .captured = view->CaptureVersion(trainer_version.version, &trainer_version, pool)});
    state->log->Append(sealed);
    const Weights after = SnapshotWeights(*state);
    CHECK((sealed->after == DigestsOf(state->layout(), after)));
    if (sealed->base.has_value()) {
      ApplyObject(state->layout(), sealed->object, before);
      CHECK((before == after));
    }
    int launches = 0;
    for (const cuda::ModelledOp& op : clock->TakeLog()) {
      launches +=
          op.kind == cuda::ModelledOp::Kind::kKernel && op.kernel == cuda::Kernel::kQuantise;
    }
    return launches;
  }
  int Step(uint64_t version, double density) { return Follow(Publish(version, density)); }

  bool IsTheHosts() {
    const auto host = Make(nullptr);
    host->CaptureVersion(*trainer->snapshot->version(), nullptr, pool);
    return SnapshotWeights(*view->state()) == SnapshotWeights(*host->state());
  }
  // Flips a bit of the GPU's copy of a slice.
  void Damage(RankSlice slice, uint64_t byte) const {
    const auto copies = trainer->snapshot->history().gpu_copies->At(*trainer->snapshot->version());
    REQUIRE(copies.ok());
    const GpuCopyPlaces places(trainer->layout(), copies->front().slices);
    const uint64_t address =
        copies->front().memory->address() + places.offsets[slice.value()] + byte;
    std::vector<std::byte> bits = cuda::ReadDevice(*device, address, 1);
    bits[0] ^= std::byte{0x20};
    cuda::WriteDevice(*device, address, bits);
  }
};

TEST_CASE("a view that a GPU quantises is the host's, from version to version", "[views][gpu]") {
  Scene scene(GENERATE(from_range(ViewNames())));
  CAPTURE(scene.name, samples::TestSeed());
  CHECK(scene.Step(1, 0) >= 3);
  REQUIRE(scene.IsTheHosts());
  uint64_t version = 1;
  for (const double density : {0.001, 0.2, 0.0, 1.0}) {
    const int launches = scene.Step(++version, density);
    INFO("version " << version << ", density " << density);
    if (density >= 0.2) CHECK(launches >= 3);
    if (density == 0) CHECK(launches == 0);
    REQUIRE(scene.IsTheHosts());
  }
}

TEST_CASE("a damaged copy on the GPU damages no view, and is used again once it is mended",
          "[views][gpu]") {
  Scene scene(GENERATE("fp8-block128/deepseek", "nvfp4/modelopt,except=b.weight", "fp8-tensor/vllm",
                       "mxfp4-gpt-oss/triton-kernels"),
              0);
  CAPTURE(scene.name, samples::TestSeed());
  const RankSlice slice(IsOfColumns(scene.name) ? 3 : 0);  // the largest
  scene.Step(1, 0);
  for (uint64_t version = 2; version < 6; version += 2) {
    const CapturedVersion published = scene.Publish(version, 0.2);
    scene.Damage(slice, 2 * scene.random.Below(scene.trainer->layout().slice(slice).elements) + 1);
    LogLines log;
    CHECK(scene.Follow(published) > 0);
    CHECK(scene.IsTheHosts());
    CHECK(log.Count(" W test view_gpu_copy_differs ") == 1);
    // The trainer's next capture compares with the copy.
    CHECK(scene.Step(version + 1, 0.2) > 0);
    CHECK(scene.IsTheHosts());
    CHECK(log.Count("view_gpu_copy_differs") == 0);
  }
}

TEST_CASE("what a damaged copy left beside the changed tiles is quantised again", "[views][gpu]") {
  Scene scene("fp8-block128/deepseek", 0);
  scene.Step(1, 0);
  // All blocks change but the second and the third one, so no tile of rows 128 to 255 does. The GPU
  // quantises these too, and the first block of codes that changes has a part of them. There are
  // more than two windows: the first one's results are taken before the digest is known.
  std::vector<std::byte>& slice = scene.weights[0];
  for (size_t at = 0; at < slice.size(); at += 2) {
    const size_t block = at / 2 / limits::kBlockElements;
    if (block != 1 && block != 2) StoreLe(slice.data() + at, scene.Element());
  }
  const CapturedVersion published = scene.Publish(2, 0);
  scene.Damage(RankSlice(0), 150 * 640 * 2 + 1);
  CHECK(scene.Follow(published) > 0);
  CHECK(scene.IsTheHosts());
}

// Lets the calls of this function fail, but for the first ones.
std::string Failing(const std::string& call, int first, int error) {
  std::string calls;
  for (int n = first; n < first + 99; ++n) calls += fmt::format("{}:{}:{},", call, n, error);
  return calls;
}

TEST_CASE("where a GPU is short of memory the host quantises, and says so once", "[views][gpu]") {
  constexpr int kOutOfMemory = 2;
  const std::string call = GENERATE("cuMemAlloc_v2", "cuMemHostAlloc");
  Scene scene("fp8-block64/deepseek");
  LogLines log;
  for (const uint64_t version : {1, 2, 3}) {
    const CapturedVersion published = scene.Publish(version, 0.2);
    const cuda::Setting setting("DWS_FAKE_CUDA_FAIL",
                                version == 1 ? Failing(call, 1, kOutOfMemory) : "");
    CHECK(scene.Follow(published) == 0);
    CHECK(scene.IsTheHosts());
    CHECK(log.Count(" W test view_not_on_gpu ") == (version == 1 ? 1 : 0));
  }
}

TEST_CASE("the host quantises what a GPU has begun when it fails", "[views][gpu]") {
  const auto [call, first] = GENERATE(table<std::string, int>({{"cuLaunchKernel", 1},
                                                               {"cuLaunchKernel", 3},
                                                               {"cuMemcpyDtoHAsync_v2", 2},
                                                               {"cuMemcpyHtoDAsync_v2", 3},
                                                               {"cuStreamSynchronize", 2},
                                                               {"cuStreamSynchronize", 9}}));
  constexpr int kUnknown = 999;
  Scene scene("int4-g32/amax7,except=b.weight");
  CAPTURE(call, first);
  LogLines log;
  scene.Step(1, 0);
  const CapturedVersion published = scene.Publish(2, 0.2);
  {
    const cuda::Setting setting("DWS_FAKE_CUDA_FAIL", Failing(call, first, kUnknown));
    scene.Follow(published);
  }
  CHECK(scene.IsTheHosts());
  CHECK(log.Count(" W test view_not_on_gpu ") == 1);
  CHECK(scene.Step(3, 0.2) == 0);
  CHECK(scene.IsTheHosts());
  CHECK(log.Count("view_not_on_gpu") == 0);
}

TEST_CASE("a GPU that has other codes than the host quantises nothing", "[views][gpu]") {
  Scene scene("fp8-block128/deepseek");
  LogLines log;
  const cuda::Setting setting("DWS_FAKE_CUDA_WRONG_CODES", "1");
  CHECK(scene.Step(1, 0) == 1);  // its proof
  CHECK(scene.IsTheHosts());
  CHECK(log.Count(" W test view_not_on_gpu ") == 1);
  CHECK(scene.Step(2, 0.2) == 0);
  CHECK(scene.IsTheHosts());
}

TEST_CASE("a copy in the memory of an earlier one has slices of its own", "[views][gpu]") {
  Scene scene("fp8-block128/deepseek");
  const RankLayout& layout = scene.trainer->layout();
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) slices.emplace_back(s);
  auto allocated = scene.device->Allocate(GpuCopyPlaces(layout, slices).size_bytes);
  REQUIRE(allocated.ok());
  const auto memory = std::make_shared<const cuda::CudaBuffer>(*std::move(allocated));
  GpuCopies& copies = *scene.trainer->snapshot->history().gpu_copies;
  LogLines log;
  for (uint64_t version = 1; version < 3; ++version) {
    for (std::vector<std::byte>& slice : scene.weights) slice[1] ^= std::byte{0x01};
    CaptureAll(*scene.trainer, scene.pool, version, scene.weights);
    const GpuCopyPlaces places(layout, slices);
    for (size_t i = 0; i < slices.size(); ++i) {
      cuda::WriteDevice(*scene.device, memory->address() + places.offsets[i],
                        scene.trainer->snapshot->SliceBytes(slices[i]));
    }
    const GpuCopies::Id id = copies.Add({scene.device, memory, slices});
    copies.Settle(WeightVersion(version));
    (void)scene.clock->TakeLog();
    scene.view->CaptureVersion(WeightVersion(version), nullptr, scene.pool);
    CHECK_FALSE(scene.clock->TakeLog().empty());
    CHECK(scene.IsTheHosts());
    CHECK(log.Count("view_gpu_copy_differs") == 0);
    copies.Remove(id);
    slices.erase(slices.begin());  // the trainer holds it elsewhere now
  }
}

TEST_CASE("a GPU quantises no slice of few elements", "[views][gpu]") {
  Scene scene("fp8-channel/vllm");
  const uint64_t elements = scene.trainer->layout().slice(RankSlice(0)).elements;
  const auto launches = [&](uint64_t elements_min) {
    scene.view = scene.Make(std::make_shared<DeviceTiles>(
        scene.trainer, DeviceTiles::Options{.elements_min = elements_min}));
    const CapturedVersion published = scene.Publish(elements_min, 0.1);
    return scene.Follow(published);
  };
  CHECK(launches(elements) == 2);  // the slice, after its recipe was proved
  CHECK(launches(elements + 1) == 0);
  CHECK(scene.IsTheHosts());
}

}  // namespace
}  // namespace dws
