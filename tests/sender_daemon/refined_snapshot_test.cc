// A refined snapshot has every element where the finer layout puts it, and digests that prove it.
#include "sender_daemon/capture/refined_snapshot.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "common/model/refinement.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

RankLayout Declared() {
  return MakeLayout(
      {{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {300, 1001}, .cuts = {{0, {100}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {7, 90, 33}}},
       // Another rank has rows 0 to 2.
       {.tensor = {.name = "c", .dtype = DType::kU8, .shape = {9, 40}, .cuts = {{0, {2}}}},
        .cells = {{1, 1}}},
       {.tensor = {.name = "d", .dtype = DType::kBF16, .shape = {0, 4}}}});
}

CutWishes Wishes() {
  return {{"a", {{.dim = 0, .at = {50, 100, 299}}, {.dim = 1, .at = {7, 500}}}},
          {"b", {{.dim = 1, .at = {30, 31}}}},
          {"c", {{.dim = 1, .at = {13}}}}};
}

// The bytes of each element of each tensor, by its place in the whole tensor.
std::map<std::pair<std::string, uint64_t>, std::string> Elements(const RankState& state) {
  std::map<std::pair<std::string, uint64_t>, std::string> elements;
  for (uint32_t s = 0; s < state.layout().slice_count(); ++s) {
    const TensorSpec& spec = state.layout().tensor(RankSlice(s));
    const auto ranges = spec.Slice(state.layout().slice(RankSlice(s)).slice);
    const auto strides = RowMajorStrides(spec.shape);
    const ByteSpan bytes = state.snapshot->SliceBytes(RankSlice(s));
    const size_t size = ElementBytes(spec.dtype);
    for (uint64_t i = 0; i * size < bytes.size(); ++i) {
      uint64_t place = 0;
      uint64_t rest = i;
      for (size_t dim = ranges.size(); dim-- > 0;) {
        place += (ranges[dim].begin + rest % ranges[dim].size()) * strides[dim];
        rest /= ranges[dim].size();
      }
      elements[{spec.name, place}] = AsText(bytes.subspan(i * size, size));
    }
  }
  return elements;
}

RankStatePtr StateOf(const RankState& coarse, std::unique_ptr<Snapshot> snapshot) {
  const RankLayout layout = snapshot->layout();
  return std::make_shared<const RankState>(
      RankState{.stream = coarse.stream,
                .rank_epoch = RankEpoch(2),
                .declared = coarse.layout(),
                .snapshot = std::move(snapshot),
                .log = std::make_shared<DeltaLog>(layout, DeltaLogLimits{1 << 30, 10})});
}

}  // namespace

TEST_CASE("each element is where the finer layout puts it, at the same version", "[refinement]") {
  ThreadPool pool(2);
  std::mt19937_64 random(3);
  const RankStatePtr coarse = MakeState(Declared(), {1 << 30, 10});
  Weights weights = RandomWeights(coarse->layout(), random);
  PublishAll(coarse, pool, 4, weights);
  const auto finer = Refined(coarse->layout(), Wishes());
  REQUIRE(finer.ok());
  auto copy = RefinedSnapshot(*coarse->snapshot, *finer, pool);
  REQUIRE(copy.ok());
  const RankStatePtr refined = StateOf(*coarse, *std::move(copy));
  CHECK(refined->layout() == *finer);
  CHECK(refined->snapshot->version() == WeightVersion(4));
  const Weights cut = SnapshotWeights(*refined);
  CHECK(refined->snapshot->digests() == DigestsOf(*finer, cut));
  CHECK(Elements(*refined) == Elements(*coarse));

  // The next version's delta leads on from there.
  Weights next = cut;
  Perturb(next, 0.01, random);
  const RetainedVersionPtr delta = PublishAll(refined, pool, 5, next);
  CHECK(delta->base == WeightVersion(4));
  CHECK(SnapshotWeights(*refined) == next);
}

TEST_CASE("a snapshot without a version is refined to one without", "[refinement]") {
  ThreadPool pool(1);
  const RankStatePtr coarse = MakeState(Declared(), {1 << 30, 10});
  const auto copy = RefinedSnapshot(*coarse->snapshot, *Refined(coarse->layout(), Wishes()), pool);
  REQUIRE(copy.ok());
  CHECK_FALSE((*copy)->version().has_value());
}

TEST_CASE("a damaged slice is not given a digest that fits it", "[refinement]") {
  ThreadPool pool(1);
  std::mt19937_64 random(5);
  const RankStatePtr coarse = MakeState(Declared(), {1 << 30, 10});
  PublishAll(coarse, pool, 1, RandomWeights(coarse->layout(), random));
  coarse->snapshot->SliceBytes(RankSlice(2))[99] ^= std::byte{1};
  const auto copy = RefinedSnapshot(*coarse->snapshot, *Refined(coarse->layout(), Wishes()), pool);
  CHECK(copy.status().code() == absl::StatusCode::kDataLoss);
  CHECK(Message(copy.status()).find("'b'") != std::string_view::npos);
}

}  // namespace dws
