// Versions of which the trainer lists what it has changed on a GPU: equal to compared ones,
// whatever the lists say. In host memory lists are not used.
#include "sender_daemon/trainer/listed_source.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "common/transport/same_host/gpu_copy_places.h"

#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/export_scenarios.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr uint64_t kRegionBytes = uint64_t{4} << 20;
constexpr DeltaLogLimits kLogLimits{.bytes_max = 1 << 30, .versions_max = 10};

// Slices that are contiguous in their shard, with blocks of their own; types of 1, 2 and 4 bytes;
// if `strided`, one more tensor whose slices no list can speak for.
RankLayout ListedLayout(bool strided = true) {
  std::vector<Shard> shards = {{.tensor = {.name = "a",
                                           .dtype = DType::kBF16,
                                           .shape = {300, 1001},
                                           .cuts = {{0, {100, 170}}}},
                                .cells = {{0, 3}}},
                               {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}},
                               {.tensor = {.name = "c", .dtype = DType::kU8, .shape = {1000, 77}}}};
  if (strided) {
    shards.push_back(
        {.tensor = {.name = "d", .dtype = DType::kBF16, .shape = {50, 40}, .cuts = {{1, {13}}}},
         .cells = {{0, 2}}});
  }
  return MakeLayout(std::move(shards));
}

// A list in terms of the shard.
struct List {
  std::vector<uint32_t> positions;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};
using Lists = std::map<uint32_t, List>;  // by shard

// The trainer. Region 0 has its weights, region 1 its lists.
struct ListingTrainer {
  explicit ListingTrainer(bool gpu) : on_gpu(gpu) {
    if (on_gpu) {
      device = cuda::OpenDevice();
      auto made = cuda::MakeScenario("chunk", device);
      REQUIRE(made.ok());
      owned = *std::move(made);
    }
    for (CreatedRegion* region : {&host, &lists}) {
      auto created = CreateHostRegion("dws-test", kRegionBytes);
      REQUIRE(created.ok());
      *region = *std::move(created);
    }
  }

  std::unique_ptr<ResidentSource> Source(const RankLayout& layout) {
    std::vector<RegionHandle> handles = {{.size_bytes = kRegionBytes},
                                         {.size_bytes = kRegionBytes}};
    std::vector<UniqueFd> descriptors;
    uint64_t base = 0;
    if (on_gpu) {
      auto exported = cuda::ExportMemory(*device, owned->ranges);
      REQUIRE((exported.ok() && exported->regions.size() == 1));
      handles[0] = exported->regions[0];
      base = exported->places[0].offset_bytes + 8 - owned->ranges[0].address % 8;
      descriptors = std::move(exported->descriptors);
    }
    for (const CreatedRegion* region : {&host, &lists}) {
      if (on_gpu && region == &host) continue;
      auto fd = ReopenReadOnly(region->fd);
      REQUIRE(fd.ok());
      descriptors.push_back(*std::move(fd));
    }
    auto regions = ImportRegions(handles, std::move(descriptors), Access::kReadOnly,
                                 on_gpu ? &devices : nullptr);
    INFO(ToString(regions.status()));
    REQUIRE(regions.ok());
    std::vector<ShardPlace> places;
    offsets.clear();
    end = 0;
    for (const Shard& shard : layout.shards()) {
      places.push_back({.region = 0, .offset_bytes = base + offsets.emplace_back(end)});
      end += CeilDiv(shard.tensor.SizeBytes(), uint64_t{8}) * 8;
    }
    auto source = ResidentSource::Create(layout, *std::move(regions), places,
                                         {.window_bytes = uint64_t{1} << 20, .spare_bytes = 0});
    INFO(ToString(source.status()));
    REQUIRE(source.ok());
    return *std::move(source);
  }

  // Writes shards, as the optimizer's step does.
  void Set(const std::vector<std::vector<std::byte>>& shards) {
    std::vector<std::byte> all(end);
    for (size_t i = 0; i < shards.size(); ++i) {
      std::ranges::copy(shards[i], all.begin() + static_cast<ptrdiff_t>(offsets[i]));
    }
    if (on_gpu) {
      cuda::WriteDevice(*device, owned->ranges[0].address + 8 - owned->ranges[0].address % 8, all);
    } else {
      std::ranges::copy(all, host.region.mutable_bytes().begin());
    }
  }

  TrainerLists Put(const Lists& wanted) {
    TrainerLists put{.region = 1, .shards = {}};
    uint64_t at = 16;
    for (const auto& [shard, list] : wanted) {
      put.shards.push_back({.shard = shard, .count = list.positions.size(), .offset_bytes = at});
      const auto copy = [&](ByteSpan bytes) {
        std::ranges::copy(bytes, lists.region.mutable_bytes().begin() + static_cast<ptrdiff_t>(at));
        at += CeilDiv(bytes.size(), kListAlignment) * kListAlignment;
      };
      copy(std::as_bytes(std::span(list.positions)));
      copy(list.before);
      copy(list.after);
    }
    return put;
  }

  const bool on_gpu;
  cuda::CudaDevicePtr device;
  std::unique_ptr<cuda::OwnedMemory> owned;
  cuda::CudaDevices devices{cuda::KernelImage()};
  CreatedRegion host;
  CreatedRegion lists;
  std::vector<uint64_t> offsets;  // of the shards
  uint64_t end = 0;
};

using Shards = std::vector<std::vector<std::byte>>;  // row-major

// The slices of shards, in slice order.
Weights SlicesOf(const RankLayout& layout, const Shards& shards) {
  Weights slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const TensorSpec& tensor = layout.tensor(RankSlice(s));
    const uint64_t bytes = ElementBytes(slice.dtype);
    const std::vector<DimRange> box = tensor.Slice(slice.slice);
    const uint64_t columns = box.size() == 2 ? tensor.shape[1] : 1;
    const DimRange across = box.size() == 2 ? box[1] : DimRange{0, 1};
    std::vector<std::byte>& out = slices.emplace_back();
    for (uint64_t row = box[0].begin; row < box[0].end; ++row) {
      const auto from = shards[slice.shard].begin() +
                        static_cast<ptrdiff_t>((row * columns + across.begin) * bytes);
      out.insert(out.end(), from, from + static_cast<ptrdiff_t>(across.size() * bytes));
    }
  }
  return slices;
}

Shards RandomShards(const RankLayout& layout, std::mt19937_64& random) {
  Shards shards;
  for (const Shard& shard : layout.shards()) {
    std::vector<std::byte>& bytes = shards.emplace_back(shard.tensor.SizeBytes());
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  }
  return shards;
}

Lists ListsOf(const RankLayout& layout, const Shards& before, const Shards& after) {
  Lists lists;
  for (uint32_t i = 0; i < before.size(); ++i) {
    List& list = lists[i];
    const size_t bytes = ElementBytes(layout.shards()[i].tensor.dtype);
    for (size_t at = 0; at < before[i].size(); at += bytes) {
      const auto was = ByteSpan(before[i]).subspan(at, bytes);
      const auto is = ByteSpan(after[i]).subspan(at, bytes);
      if (std::ranges::equal(was, is)) continue;
      list.positions.push_back(static_cast<uint32_t>(at / bytes));
      list.before.insert(list.before.end(), was.begin(), was.end());
      list.after.insert(list.after.end(), is.begin(), is.end());
    }
  }
  return lists;
}

// A sender with its trainer, and a twin that compares the same weights.
struct Listing {
  explicit Listing(bool gpu, bool strided = true)
      : state(MakeState(ListedLayout(strided), kLogLimits)),
        twin(MakeState(ListedLayout(strided), kLogLimits)),
        trainer(gpu) {
    source = trainer.Source(layout);
    shards = RandomShards(layout, random);
    Publish({});
  }

  // Publishes `shards`; returns how many blocks were taken from the lists.
  uint64_t Publish(const Lists& lists) { return PublishPut(trainer.Put(lists)); }
  // Like Publish, of lists that are in their memory.
  uint64_t PublishPut(const TrainerLists& put) {
    ++version;
    trainer.Set(shards);
    REQUIRE(CheckLists(layout, kRegionBytes, put.shards).ok());
    Capture capture(*state->snapshot, pool, WeightVersion(version));
    std::optional<uint64_t> read;
    const Status done = CaptureResident(capture, *source, *state->snapshot, pool, put,
                                        [&](uint64_t changed) { read = changed; });
    INFO(ToString(done));
    REQUIRE(done.ok());
    auto captured = capture.Finish();
    REQUIRE(captured.ok());
    if (read.has_value()) CHECK(*read == captured->nnz);
    const uint64_t listed = captured->listed_blocks;
    const RetainedVersionPtr sealed = Seal({.state = state, .captured = *std::move(captured)});
    const Weights slices = SlicesOf(layout, shards);
    CHECK(sealed->object == PublishAll(twin, pool, version, slices)->object);
    CHECK((SnapshotWeights(*state) == slices));
    if (trainer.on_gpu) CheckCopies(slices);
    return listed;
  }

  // The copies that receivers may borrow have this version.
  void CheckCopies(const Weights& slices) const {
    const auto copies = state->snapshot->history().gpu_copies->At(WeightVersion(version));
    INFO(ToString(copies.status()));
    REQUIRE(copies.ok());
    for (const GpuCopies::Copy& copy : *copies) {
      const GpuCopyPlaces places(layout, copy.slices);
      for (size_t i = 0; i < copy.slices.size(); ++i) {
        const std::vector<std::byte>& wanted = slices[copy.slices[i].value()];
        const uint64_t at = copy.memory->address() + places.offsets[i];
        CHECK((cuda::ReadDevice(*copy.device, at, wanted.size()) == wanted));
      }
    }
  }

  // Changes weights, and returns the lists of the changes.
  Lists Step() {
    const Shards before = shards;
    for (auto& shard : shards) Perturb(shard, 0.01, random);
    return ListsOf(layout, before, shards);
  }

  uint64_t BlocksOf(std::string_view tensor) const {
    uint64_t blocks = 0;
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      if (layout.tensor(RankSlice(s)).name == tensor) blocks += layout.slice(RankSlice(s)).blocks;
    }
    return blocks;
  }

  std::mt19937_64 random{Catch::rngSeed()};
  ThreadPool pool{2};
  const RankStatePtr state;
  const RankStatePtr twin;
  const RankLayout& layout = state->layout();
  ListingTrainer trainer;
  std::unique_ptr<ResidentSource> source;
  Shards shards;
  uint64_t version = 0;
};

TEST_CASE("a version with lists is the one that is compared without them", "[listed]") {
  const bool gpu = GENERATE(false, true);
  INFO("seed " << Catch::rngSeed() << (gpu ? " on a GPU" : " on the host"));
  Listing job(gpu);
  const uint64_t contiguous = job.layout.block_count() - job.BlocksOf("d");
  REQUIRE(job.BlocksOf("a") == 6);
  const auto listed = [gpu](uint64_t blocks) { return gpu ? blocks : 0; };
  for (int step = 0; step < 3; ++step) CHECK(job.Publish(job.Step()) == listed(contiguous));
  // Nothing has changed: an empty list is right.
  CHECK(job.Publish({{0, {}}}) == listed(job.BlocksOf("a")));
  Lists lists = job.Step();
  lists.erase(1);  // no word about "b": it is compared
  CHECK(job.Publish(lists) == listed(contiguous - job.BlocksOf("b")));
}

TEST_CASE("a version without lists follows one with lists", "[listed]") {
  Listing job(/*gpu=*/true);
  job.Step();
  CHECK(job.Publish({}) == 0);  // the copy on the GPU is made, or is one by now
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(job.Publish(job.Step()) > 0);
    job.Step();
    CHECK(job.Publish({}) == 0);
  }
}

TEST_CASE("a list that is wrong is not believed, and the weights are compared", "[listed]") {
  Listing job(/*gpu=*/true);
  const uint64_t contiguous = job.layout.block_count() - job.BlocksOf("d");
  const auto damage = GENERATE(as<std::string>(), "lacks one", "has an element that did not change",
                               "other value before", "other value after", "not ascending", "twice",
                               "of the version before", "outside of its shard", "empty");
  INFO("a list that is " << damage);
  const Lists older = job.Step();
  job.Publish(older);
  Lists lists = job.Step();
  List& list = lists[1];  // "b", two blocks, of F32
  const auto erase = [&](size_t i) {
    list.positions.erase(list.positions.begin() + static_cast<ptrdiff_t>(i));
    for (auto* values : {&list.before, &list.after}) {
      const auto at = values->begin() + static_cast<ptrdiff_t>(i * 4);
      values->erase(at, at + 4);
    }
  };
  const size_t middle = list.positions.size() / 2;
  if (damage == "lacks one") {
    erase(middle);
  } else if (damage == "has an element that did not change") {
    // It leads to the weights, but a delta has no step of nothing.
    uint32_t unchanged = 0;
    while (std::ranges::find(list.positions, unchanged) != list.positions.end()) ++unchanged;
    const auto place = std::ranges::lower_bound(list.positions, unchanged);
    const auto at = (place - list.positions.begin()) * 4;
    list.positions.insert(place, unchanged);
    const auto value = job.shards[1].begin() + static_cast<ptrdiff_t>(unchanged) * 4;
    list.before.insert(list.before.begin() + at, value, value + 4);
    list.after.insert(list.after.begin() + at, value, value + 4);
  } else if (damage == "other value before") {
    list.before[middle * 4] ^= std::byte{1};
  } else if (damage == "other value after") {
    list.after[middle * 4] ^= std::byte{1};
  } else if (damage == "not ascending") {
    std::swap(list.positions[middle], list.positions[middle + 1]);
  } else if (damage == "twice") {
    list.positions[middle] = list.positions[middle + 1];
  } else if (damage == "of the version before") {
    list = older.at(1);
  } else if (damage == "outside of its shard") {
    list.positions.back() = 70'001;
  } else {
    list = {};
  }
  CHECK(job.Publish(lists) == contiguous - job.BlocksOf("b"));
  CHECK(job.Publish(job.Step()) == contiguous);  // the next lists are believed again
}

TEST_CASE("positions of any bytes are only not believed", "[listed]") {
  Listing job(/*gpu=*/true);
  for (int round = 0; round < 20; ++round) {
    Lists lists = job.Step();
    for (auto& [shard, list] : lists) {
      for (uint32_t& position : list.positions) {
        if (job.random() % 8 == 0) position = static_cast<uint32_t>(job.random());
      }
    }
    job.Publish(lists);
  }
}

TEST_CASE("lists that are written while they are read lead to the weights all the same",
          "[listed]") {
  INFO("seed " << Catch::rngSeed());
  Listing job(/*gpu=*/true);
  for (int round = 0; round < 100; ++round) {
    const Lists right = job.Step();
    // As long, so that it lies at the same places, with positions in other blocks.
    Lists other = right;
    for (auto& [shard, list] : other) {
      const size_t half = list.positions.size() / 2;
      for (size_t i = half; i > 0; --i) list.positions[i - 1] = list.positions[half] - (half - i);
    }
    const TrainerLists put = job.trainer.Put(right);
    std::atomic<bool> done{false};
    std::thread writer([&] {
      // Each stays for about as long as the sender takes to check some blocks.
      for (int turn = 0; !done.load(); ++turn) job.trainer.Put(turn / 8 % 2 == 0 ? right : other);
    });
    job.PublishPut(put);
    done = true;
    writer.join();
  }
}

TEST_CASE("a slice whose snapshot is distrusted is compared although it is listed", "[listed]") {
  Listing job(/*gpu=*/true);
  job.state->snapshot->SetDistrust(RankSlice(0), true);
  const uint64_t contiguous = job.layout.block_count() - job.BlocksOf("d");
  CHECK(job.Publish(job.Step()) == contiguous - job.layout.slice(RankSlice(0)).blocks);
  CHECK_FALSE(job.state->snapshot->distrusts(RankSlice(0)));
}

TEST_CASE("a listed version that is undone leaves the one before", "[listed]") {
  Listing job(/*gpu=*/true);
  const Shards before = job.shards;
  const Lists lists = job.Step();
  job.trainer.Set(job.shards);
  {
    Capture capture(*job.state->snapshot, job.pool, WeightVersion(job.version + 1));
    REQUIRE(CaptureResident(capture, *job.source, *job.state->snapshot, job.pool,
                            job.trainer.Put(lists), nullptr)
                .ok());
  }
  CHECK((SnapshotWeights(*job.state) == SlicesOf(job.layout, before)));
  CHECK(job.Publish(lists) > 0);
  job.Step();
  CHECK(job.Publish({}) == 0);
}

TEST_CASE("a copy on the GPU is current after listed versions alone", "[listed]") {
  Listing job(/*gpu=*/true, /*strided=*/false);
  const uint64_t all = job.layout.block_count();
  CHECK(job.Publish(job.Step()) == all);
  // The trainer registers again: its copy is made by a listed version, too.
  job.source.reset();
  job.source = job.trainer.Source(job.layout);
  CHECK(job.Publish(job.Step()) == all);
  CHECK(job.Publish(job.Step()) == all);
  // A version is undone.
  const Lists lists = job.Step();
  job.trainer.Set(job.shards);
  {
    Capture capture(*job.state->snapshot, job.pool, WeightVersion(job.version + 1));
    REQUIRE(CaptureResident(capture, *job.source, *job.state->snapshot, job.pool,
                            job.trainer.Put(lists), nullptr)
                .ok());
  }
  CHECK(job.Publish(lists) == all);
}

TEST_CASE("lists that do not fit their memory or layout are refused by name", "[listed]") {
  const RankLayout layout = ListedLayout();
  const auto refused = [&](std::vector<ListedShard> lists) {
    const Status status = CheckLists(layout, 1000, lists);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(Message(status));
  };
  CHECK(CheckLists(layout, 1000, {}).ok());
  const std::vector<ListedShard> whole = {{.shard = 1, .count = 82, .offset_bytes = 8}};
  CHECK(CheckLists(layout, 1000, whole).ok());  // 328 + 2 * 328 bytes
  CHECK_THAT(refused({{.shard = 1, .count = 60}, {.shard = 2, .count = 140}}),
             Catch::Contains("'c'") && Catch::Contains("overlap"));
  CHECK_THAT(refused({{.shard = 4}}), Catch::Contains("below 4"));
  CHECK_THAT(refused({{.shard = 1}, {.shard = 1}}), Catch::Contains("ascend"));
  CHECK_THAT(refused({{.shard = 1}, {.shard = 0}}), Catch::Contains("ascend"));
  CHECK_THAT(refused({{.shard = 1, .count = 70'002}}),
             Catch::Contains("'b'") && Catch::Contains("70002") && Catch::Contains("70001"));
  CHECK_THAT(refused({{.shard = 1, .count = 1, .offset_bytes = 4}}), Catch::Contains("multiple"));
  CHECK_THAT(refused({{.shard = 1, .count = 82, .offset_bytes = 24}}), Catch::Contains("1000"));
  CHECK_THAT(refused({{.shard = 1, .count = 1, .offset_bytes = ~uint64_t{7}}}),
             Catch::Contains("1000"));
}

}  // namespace
}  // namespace dws
