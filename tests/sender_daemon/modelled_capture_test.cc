// What overlaps in a capture of weights on a GPU, by the fake driver's clock. The host takes no
// time there, so that every time follows from the order of the sender's calls.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "tests/fakes/cuda/model/fake_clock.h"
#include "tests/sender_daemon/gpu_weights.h"

namespace dws {
namespace {

using Kind = cuda::ModelledOp::Kind;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kWeightBytes = 8 * kMiB;
const DeviceShardsOptions kOptions = {.window_bytes = kMiB, .arena_bytes = kMiB, .spare_bytes = 0};
constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// Forwards to a GPU's source, and counts after how many fetches the GPU or the bus is still busy.
class WatchedSource final : public WeightSource {
 public:
  WatchedSource(GpuSource& source, const cuda::FakeClock& clock) : source_(source), clock_(clock) {}
  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool) override {
    auto fetched = source_.Fetch(refs, as, snapshot, pool);
    ++fetches;
    for (const cuda::ModelledOp& op : clock_.TakeLog()) log.push_back(op);
    busy += std::ranges::any_of(
        log, [now = clock_.Now()](const cuda::ModelledOp& op) { return op.end > now; });
    return fetched;
  }
  std::optional<DiffedBlock> Diffed(BlockRef ref) const override { return source_.Diffed(ref); }
  void Read(BlockRef ref, MutableByteSpan block) const override { source_.Read(ref, block); }
  ByteSpan View(BlockRef ref, size_t size) const override { return source_.View(ref, size); }

  // Seconds of some kinds of work, one after the other.
  double Sum(std::initializer_list<Kind> kinds) const {
    double seconds = 0;
    for (const cuda::ModelledOp& op : log) {
      if (std::ranges::find(kinds, op.kind) != kinds.end()) seconds += op.end - op.begin;
    }
    return seconds;
  }
  uint64_t Bytes(Kind kind) const {
    uint64_t bytes = 0;
    for (const cuda::ModelledOp& op : log) bytes += op.kind == kind ? op.bytes : 0;
    return bytes;
  }

  std::vector<cuda::ModelledOp> log;
  int fetches = 0;
  int busy = 0;

 private:
  GpuSource& source_;
  const cuda::FakeClock& clock_;
};

// A trainer that has published its first version, before the clock starts.
struct Published {
  Published() {
    memory.Set(weights);
    Capture first(*state->snapshot, pool, WeightVersion(1));
    REQUIRE(first.Blocks(AllBlocks(state->layout()), source).ok());
    REQUIRE(first.Finish().ok());
    Perturb(weights, 0.01, random);
    memory.Set(weights);
  }

  std::mt19937_64 random{Catch::rngSeed()};
  ThreadPool pool{1};
  const RankStatePtr state = MakeState(
      MakeLayout({{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {kWeightBytes / 2}}}}),
      kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  GpuWeights memory{device, state->layout()};
  GpuSource source{device, memory, kOptions};
};

// A window's comparison and the copy of its lists take about equally long, and so do the gathering
// of a window and its copy: then overlapping saves the most.
cuda::GpuModel BalancedModel() {
  cuda::GpuModel model;
  model.kernels[static_cast<size_t>(cuda::Kernel::kDiffList)].share = 1e3;
  model.read_bandwidth = 2e9;
  model.copy_bandwidth = 2e9;
  model.kernels[static_cast<size_t>(cuda::Kernel::kDiff)].share = 1;
  model.to_host_bandwidth = 0.06e9;
  return model;
}

TEST_CASE("comparisons and the copies of lists of different windows overlap", "[gpu]") {
  Published trainer;
  const cuda::FakeClock clock(BalancedModel());
  WatchedSource source(trainer.source, clock);
  Capture capture(*trainer.state->snapshot, trainer.pool, WeightVersion(2));
  double read_at = 0;
  REQUIRE(capture
              .Blocks(AllBlocks(trainer.state->layout()), source,
                      [&](uint64_t) { read_at = clock.Now(); })
              .ok());
  const auto captured = capture.Finish();
  REQUIRE(captured.ok());
  CHECK(captured->copied_blocks == 0);
  CHECK(source.fetches == 1);
  REQUIRE(read_at > 0);
  const double compute = source.Sum({Kind::kKernel, Kind::kOnDevice});
  const double lists = source.Sum({Kind::kToHost});
  CHECK(compute < 2 * lists);
  CHECK(lists < 2 * compute);
  // Eight windows: 0.56 of the sum if the two take equally long and nothing else takes time.
  CHECK(read_at < 0.75 * (compute + lists));
  CHECK(read_at > std::max(compute, lists));
}

TEST_CASE("a full version crosses the bus once, window after window while the host stores",
          "[gpu]") {
  Published trainer;
  cuda::GpuModel model = BalancedModel();
  model.to_host_bandwidth = 1e9;  // gathering reads and writes at 2e9
  const cuda::FakeClock clock(model);
  WatchedSource source(trainer.source, clock);
  Capture capture(*trainer.state->snapshot, trainer.pool, WeightVersion(2), DeltaProfile::kFast,
                  FullCause::kAsked);
  REQUIRE(capture.Blocks(AllBlocks(trainer.state->layout()), source).ok());
  const double read_at = clock.Now();
  REQUIRE(capture.Finish().ok());
  CHECK((SnapshotWeights(*trainer.state) == trainer.weights));
  CHECK(source.Bytes(Kind::kToHost) == kWeightBytes);
  CHECK(source.Bytes(Kind::kToDevice) < kWeightBytes / 100);  // descriptions of blocks
  // Only the first window has nobody to gather beside.
  CHECK(read_at < 0.65 * source.Sum({Kind::kKernel, Kind::kToHost}));
  // While the host stores a window, the next is on its way.
  REQUIRE(source.fetches > 8);
  CHECK(source.busy == source.fetches - 1);
}

}  // namespace
}  // namespace dws
