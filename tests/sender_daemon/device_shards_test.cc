#include "sender_daemon/capture/device_shards.h"

#include <catch2/catch.hpp>
#include <optional>

#include "tests/sender_daemon/gpu_weights.h"
#include "tests/sender_daemon/object_apply.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
// So large that no copy of the snapshot is kept on the GPU.
constexpr uint64_t kAllSpare = ~uint64_t{0};
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Elements of all widths, blocks with odd tails, an empty slice.
RankLayout WideLayout() {
  return MakeLayout(
      {{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {300, 1001}, .cuts = {{0, {100}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}},
       {.tensor = {.name = "c", .dtype = DType::kF8E4M3, .shape = {131'075}}},
       {.tensor = {.name = "d", .dtype = DType::kF64, .shape = {33'333}}},
       {.tensor = {.name = "e", .dtype = DType::kI64, .shape = {7}}},
       {.tensor = {.name = "f", .dtype = DType::kI32, .shape = {0}}},
       {.tensor = {.name = "g", .dtype = DType::kU8, .shape = {3}}}});
}

// A trainer on a GPU, and one in host memory that publishes the same.
struct Twins {
  Twins(RankLayout layout, const DeviceShardsOptions& options)
      : random(Catch::rngSeed()),
        on_gpu(MakeState(layout, kNoLimits)),
        on_host(MakeState(layout, kNoLimits)),
        weights(RandomWeights(layout, random)),
        device(cuda::OpenDevice()),
        memory(device, on_gpu->layout()),
        source(device, memory, options) {
    memory.Set(weights);
  }

  void Step(double density) {
    Perturb(weights, density, random);
    memory.Set(weights);
  }

  Result<CapturedVersion> CaptureOnGpu(uint64_t version, DeltaProfile profile = DeltaProfile::kFast,
                                       FullCause full = FullCause::kNone) {
    Capture capture(*on_gpu->snapshot, pool, WeightVersion(version), profile, full);
    std::optional<uint64_t> told;
    const auto on_read = [&](uint64_t changed) {
      CHECK_FALSE(told.has_value());
      told = changed;
      Weights later = weights;  // the trainer goes on at once
      Perturb(later, 0.5, random);
      memory.Set(later);
    };
    DWS_RETURN_IF_ERROR(capture.Blocks(AllBlocks(on_gpu->layout()), source, on_read));
    auto captured = capture.Finish();
    memory.Set(weights);
    if (captured.ok()) CHECK((told == captured->nnz || !told.has_value()));
    was_read_early = told.has_value();
    return captured;
  }

  // Publishes the current weights on both, and compares the results.
  FetchedBlocks Publish(uint64_t version, DeltaProfile profile = DeltaProfile::kFast) {
    auto captured = CaptureOnGpu(version, profile);
    INFO(ToString(captured.status()));
    REQUIRE(captured.ok());
    const FetchedBlocks counts{.compared = captured->compared_blocks,
                               .copied = captured->copied_blocks};
    const RetainedVersionPtr sealed = Seal({.state = on_gpu, .captured = *std::move(captured)});
    const RetainedVersionPtr expected = PublishAll(on_host, pool, version, weights, profile);
    CHECK(sealed->object == expected->object);
    CHECK(sealed->other_object == expected->other_object);
    CHECK(sealed->after == expected->after);
    CHECK(sealed->after == DigestsOf(on_gpu->layout(), weights));
    CHECK(SnapshotWeights(*on_gpu) == weights);
    CHECK(counts.compared + counts.copied == on_gpu->layout().block_count());
    return counts;
  }

  bool was_read_early = false;  // the last captured version
  std::mt19937_64 random;
  ThreadPool pool{1};
  const RankStatePtr on_gpu;
  const RankStatePtr on_host;
  Weights weights;
  const cuda::CudaDevicePtr device;
  GpuWeights memory;
  GpuSource source;
};

TEST_CASE("changes on a GPU are published with the same bytes as from host memory", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  Twins twins(WideLayout(), {.window_bytes = kMiB, .arena_bytes = kMiB, .spare_bytes = spare});
  CHECK(twins.Publish(1, profile).compared == 0);  // nothing to compare with
  uint64_t version = 1;
  for (const double density : {0.0, 0.0005, 0.01, 0.3, 0.001, 3.0, 0.01}) {
    twins.Step(density);
    const FetchedBlocks counts = twins.Publish(++version, profile);
    CHECK(twins.was_read_early);
    if (density <= 0.01) CHECK(counts.copied == 0);
    if (density >= 0.3) CHECK(counts.copied > 0);  // too much to be listed
  }
}

TEST_CASE("blocks that do not fit in the list of changes are copied whole", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(WideLayout(), {.arena_bytes = 20'000, .spare_bytes = spare});
  twins.Publish(1);
  for (uint64_t version = 2; version < 5; ++version) {
    twins.Step(0.01);
    const FetchedBlocks counts = twins.Publish(version);
    CHECK(counts.compared > 0);
    CHECK(counts.copied > 0);
  }
}

TEST_CASE("weights are read in parts if the lists of all changes find no room", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  // Room for the lists of one window and a little.
  Twins twins(
      WideLayout(),
      {.window_bytes = kMiB, .arena_bytes = 60'000, .list_bytes_max = 0, .spare_bytes = spare});
  twins.Publish(1);
  for (uint64_t version = 2; version < 6; ++version) {
    twins.Step(version % 2 == 0 ? 0.01 : 0.2);
    const FetchedBlocks counts = twins.Publish(version);
    if (version % 2 == 0) CHECK(counts.compared > 0);
    CHECK(twins.was_read_early);  // the last part
  }
}

TEST_CASE("a full version of a GPU is copied whole, and the changes after it are listed again",
          "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(WideLayout(), {.window_bytes = kMiB, .spare_bytes = spare});
  const uint64_t blocks = twins.on_gpu->layout().block_count();
  twins.Publish(1);
  for (uint64_t version = 2; version < 8; version += 2) {
    twins.Step(0.001);
    const auto full = twins.CaptureOnGpu(version, DeltaProfile::kFast, FullCause::kAsked);
    REQUIRE(full.ok());
    CHECK(full->copied_blocks == blocks);
    CHECK(full->after == DigestsOf(twins.on_gpu->layout(), twins.weights));
    CHECK(SnapshotWeights(*twins.on_gpu) == twins.weights);
    PublishAll(twins.on_host, twins.pool, version, twins.weights);
    twins.Step(0.001);
    CHECK(twins.Publish(version + 1).compared == blocks);
  }
}

TEST_CASE("after a full version of a GPU that was given up all blocks are copied", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(WideLayout(), {.window_bytes = kMiB, .spare_bytes = spare});
  twins.Publish(1);
  twins.Step(0.01);
  {
    Capture capture(*twins.on_gpu->snapshot, twins.pool, WeightVersion(2), DeltaProfile::kFast,
                    FullCause::kAsked);
    auto refs = AllBlocks(twins.on_gpu->layout());
    refs.resize(refs.size() / 2);
    REQUIRE(capture.Blocks(refs, twins.source).ok());
  }
  CHECK_FALSE(twins.on_gpu->snapshot->version().has_value());
  twins.Step(0.01);
  const auto next = twins.CaptureOnGpu(2);
  REQUIRE(next.ok());
  CHECK(next->copied_blocks == twins.on_gpu->layout().block_count());
  CHECK(SnapshotWeights(*twins.on_gpu) == twins.weights);
  PublishAll(twins.on_host, twins.pool, 2, twins.weights);
  twins.Step(0.001);
  CHECK(twins.Publish(3).copied == 0);
}

TEST_CASE("an undone capture from a GPU leaves nothing behind", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(WideLayout(), {.window_bytes = kMiB, .spare_bytes = spare});
  const auto undo = [&twins](uint64_t version) {
    const Weights before = SnapshotWeights(*twins.on_gpu);
    Capture capture(*twins.on_gpu->snapshot, twins.pool, WeightVersion(version));
    auto refs = AllBlocks(twins.on_gpu->layout());
    refs.resize(refs.size() / 2);
    REQUIRE(capture.Blocks(refs, twins.source).ok());
    capture.Undo();
    if (version > 1) CHECK(SnapshotWeights(*twins.on_gpu) == before);
  };
  undo(1);
  twins.Publish(1);
  for (uint64_t version = 2; version < 5; ++version) {
    twins.Step(0.005);
    undo(version);
    twins.Step(0.001);
    CHECK(twins.Publish(version).copied == 0);  // the changes that were undone are among them
  }
}

TEST_CASE(
    "a damaged snapshot byte where a weight changed is detected and the GPU's changes are unused",
    "[gpu]") {
  Twins twins(SmallLayout(), {.spare_bytes = 0});
  twins.Publish(1);
  for (const RankStatePtr& state : {twins.on_gpu, twins.on_host}) {
    state->snapshot->BlockBytes(RankSlice(1), 1)[4] ^= std::byte{1};
  }
  twins.weights[1][65'536 * 2 + 4] ^= std::byte{2};
  twins.memory.Set(twins.weights);
  auto captured = twins.CaptureOnGpu(2);
  REQUIRE(captured.ok());
  CHECK(captured->copied_blocks == 1);
  // As from host memory: the bytes are right from here on, but the digest is the earlier one
  // updated with the changes that were seen, so receivers will refuse it.
  const CapturedVersion expected = CaptureAll(*twins.on_host, twins.pool, 2, twins.weights);
  CHECK(captured->after == expected.after);
  CHECK(SnapshotWeights(*twins.on_gpu) == twins.weights);
  CHECK(captured->after != DigestsOf(twins.on_gpu->layout(), twins.weights));
}

TEST_CASE("a distrusted slice is read whole from the GPU and becomes correct", "[gpu]") {
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(SmallLayout(), {.spare_bytes = spare});
  twins.Publish(1);
  // A bit that the trainer does not change: the GPU's comparison would not see it.
  twins.on_gpu->snapshot->SliceBytes(RankSlice(2))[100] ^= std::byte{1};
  twins.on_gpu->snapshot->SetDistrust(RankSlice(2), true);
  auto captured = twins.CaptureOnGpu(2);
  REQUIRE(captured.ok());
  CHECK(captured->copied_blocks == twins.on_gpu->layout().slice(RankSlice(2)).blocks);
  CHECK(SnapshotWeights(*twins.on_gpu) == twins.weights);
  CHECK(captured->after == DigestsOf(twins.on_gpu->layout(), twins.weights));
  CHECK_FALSE(twins.on_gpu->snapshot->distrusts(RankSlice(2)));
}

TEST_CASE("a version in which a GPU fails is undone and the next one is complete", "[gpu]") {
  const std::string call =
      GENERATE("cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize");
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(SmallLayout(), {.window_bytes = kMiB, .spare_bytes = spare});
  if (!cuda::IsFake(*twins.device)) return;  // a real GPU cannot be told to fail
  std::string every;
  for (int number = 1; number < 100; ++number) every += fmt::format("{}:{},", call, number);
  twins.Publish(1);
  twins.Step(0.01);
  const Weights before = SnapshotWeights(*twins.on_gpu);
  {
    Capture capture(*twins.on_gpu->snapshot, twins.pool, WeightVersion(2));
    const std::vector<BlockRef> refs = AllBlocks(twins.on_gpu->layout());
    REQUIRE(capture.Blocks(std::span(refs).first(3), twins.source).ok());
    const cuda::Setting setting("DWS_FAKE_CUDA_FAIL", every);
    const Status failed = capture.Blocks(std::span(refs).subspan(3), twins.source);
    CHECK(failed.code() == absl::StatusCode::kInternal);
    CHECK(std::string(Message(failed)).find("GPU-") != std::string::npos);
  }
  CHECK(SnapshotWeights(*twins.on_gpu) == before);
  CHECK(twins.on_gpu->snapshot->version() == WeightVersion(1));
  twins.Step(0.001);
  twins.Publish(2);
}

TEST_CASE("a GPU that fails while a half of a full version is on its way leaves none of it",
          "[gpu]") {
  // The first half has arrived: the second one is awaited, the third one begun, then awaited.
  const auto [call, fetch] = GENERATE(table<std::string, int>(
      {{"cuStreamSynchronize", 2}, {"cuLaunchKernel", 2}, {"cuStreamSynchronize", 3}}));
  const auto spare = GENERATE(uint64_t{0}, kAllSpare);
  Twins twins(WideLayout(), {.window_bytes = kMiB, .spare_bytes = spare});
  if (!cuda::IsFake(*twins.device)) return;  // a real GPU cannot be told to fail
  std::string every;
  for (int number = 1; number < 999; ++number) every += fmt::format("{}:{},", call, number);
  twins.Publish(1);
  twins.Step(0.1);
  {
    std::optional<cuda::Setting> fails;
    Watched watched(twins.source, [&, at = fetch](int number) {
      if (number == at) fails.emplace("DWS_FAKE_CUDA_FAIL", every);
    });
    Capture capture(*twins.on_gpu->snapshot, twins.pool, WeightVersion(2), DeltaProfile::kFast,
                    FullCause::kAsked);
    const Status failed = capture.Blocks(AllBlocks(twins.on_gpu->layout()), watched);
    CHECK(failed.code() == absl::StatusCode::kInternal);
    CHECK(watched.calls() == fetch);
  }
  CHECK_FALSE(twins.on_gpu->snapshot->version().has_value());  // half of it is overwritten
  twins.Step(0.01);
  const auto next = twins.CaptureOnGpu(2);
  REQUIRE(next.ok());
  CHECK(next->copied_blocks == twins.on_gpu->layout().block_count());
  CHECK(SnapshotWeights(*twins.on_gpu) == twins.weights);
  PublishAll(twins.on_host, twins.pool, 2, twins.weights);
  twins.Step(0.001);
  CHECK(twins.Publish(3).copied == 0);
}

}  // namespace
}  // namespace dws
