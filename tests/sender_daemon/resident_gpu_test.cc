// A trainer's shards that are partly in host memory and partly on a GPU, handed over as regions.
#include <catch2/catch.hpp>
#include <optional>

#include "sender_daemon/trainer/handover.h"
#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/export_scenarios.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr uint64_t kRegionBytes = uint64_t{4} << 20;

// Cut by columns, so that slices are strided; a tensor on the host; bytes at an odd offset.
RankLayout MixedLayout() {
  return MakeLayout({{.tensor = {.name = "a",
                                 .dtype = DType::kBF16,
                                 .shape = {300, 1001},
                                 .cuts = {{1, {100, 750}}}},
                      .cells = {{0, 3}}},
                     {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}},
                     {.tensor = {.name = "c", .dtype = DType::kU8, .shape = {1000, 77}}}});
}

// The trainer: region 0 is a chunk of a GPU, region 1 a memfd.
struct MixedTrainer {
  MixedTrainer() {
    auto owned = cuda::MakeScenario("chunk", device);
    REQUIRE(owned.ok());
    gpu = *std::move(owned);
    base = gpu->ranges[0].address - 5;
    auto created = CreateHostRegion("dws-test", kRegionBytes);
    REQUIRE(created.ok());
    host = *std::move(created);
  }

  std::vector<MappedRegion> Regions() {
    const std::vector<cuda::DeviceRange> all = {{base, kRegionBytes}};
    auto exported = cuda::ExportMemory(*device, all);
    REQUIRE((exported.ok() && exported->regions.size() == 1));
    std::vector<UniqueFd> descriptors = std::move(exported->descriptors);
    auto fd = ReopenReadOnly(host.fd);
    REQUIRE(fd.ok());
    descriptors.push_back(*std::move(fd));
    const std::vector<RegionHandle> handles = {exported->regions[0], {.size_bytes = kRegionBytes}};
    auto regions = ImportRegions(handles, std::move(descriptors), Access::kReadOnly, &devices);
    INFO(ToString(regions.status()));
    REQUIRE(regions.ok());
    return *std::move(regions);
  }

  // Lays the weights out as shards: row-major.
  void Set(const RankLayout& layout, const Weights& weights, std::span<const ShardPlace> places) {
    std::vector<std::byte> on_gpu(kRegionBytes);
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
      const TensorSpec& tensor = layout.tensor(RankSlice(s));
      const uint64_t bytes = ElementBytes(slice.dtype);
      const bool cut = tensor.name == "a";
      const uint64_t columns = cut ? 1001 : slice.elements;
      const DimRange range = cut ? tensor.Slice(slice.slice)[1] : DimRange{0, slice.elements};
      const uint64_t width = range.end - range.begin;
      const ShardPlace& place = places[slice.shard];
      std::byte* const to =
          (place.region == 0 ? on_gpu.data() : host.region.mutable_bytes().data()) +
          place.offset_bytes;
      for (uint64_t e = 0; e < slice.elements; ++e) {
        const uint64_t at = e / width * columns + range.begin + e % width;
        std::copy_n(weights[s].data() + e * bytes, bytes, to + at * bytes);
      }
    }
    cuda::WriteDevice(*device, base, on_gpu);
  }

  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  cuda::CudaDevices devices{cuda::KernelImage()};
  std::unique_ptr<cuda::OwnedMemory> gpu;
  uint64_t base = 0;
  CreatedRegion host;
};

TEST_CASE("shards on a GPU and on the host are published with the same bytes as from the host",
          "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(MixedLayout(), {.bytes_max = 1 << 30, .versions_max = 10});
  const RankStatePtr twin = MakeState(MixedLayout(), {.bytes_max = 1 << 30, .versions_max = 10});
  const RankLayout& layout = state->layout();
  MixedTrainer trainer;
  const std::vector<ShardPlace> places = {{.region = 0, .offset_bytes = 6},
                                          {.region = 1, .offset_bytes = 4},
                                          {.region = 0, .offset_bytes = 700'001}};
  auto source = ResidentSource::Create(layout, trainer.Regions(), places,
                                       {.window_bytes = uint64_t{1} << 20, .spare_bytes = 0});
  INFO(ToString(source.status()));
  REQUIRE(source.ok());
  Weights weights = RandomWeights(layout, random);
  for (uint64_t version = 1; version < 5; ++version) {
    trainer.Set(layout, weights, places);
    Capture capture(*state->snapshot, pool, WeightVersion(version));
    REQUIRE(capture.Blocks(AllBlocks(layout), **source).ok());
    auto captured = capture.Finish();
    REQUIRE(captured.ok());
    // The two blocks of "b" are in host memory.
    CHECK(captured->compared_blocks + captured->copied_blocks == layout.block_count() - 2);
    CHECK((version == 1 ? captured->compared_blocks : captured->copied_blocks) == 0);
    const RetainedVersionPtr sealed = Seal({.state = state, .captured = *std::move(captured)});
    CHECK(sealed->object == PublishAll(twin, pool, version, weights)->object);
    CHECK(SnapshotWeights(*state) == weights);
    Perturb(weights, 0.01, random);
  }
}

TEST_CASE("a GPU shard that is misaligned or beyond its region is refused and named", "[gpu]") {
  const RankLayout layout =
      MakeLayout({{.tensor = {.name = "w", .dtype = DType::kU16, .shape = {5, 8}}}});
  MixedTrainer trainer;
  for (const uint64_t offset : {uint64_t{3}, kRegionBytes - 78}) {
    const auto source = ResidentSource::Create(layout, trainer.Regions(),
                                               std::vector<ShardPlace>{{.offset_bytes = offset}});
    CHECK(source.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(Message(source.status())).find("'w'") != std::string::npos);
  }
}

}  // namespace
}  // namespace dws
