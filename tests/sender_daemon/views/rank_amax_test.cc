// Ranks that have parts of matrices with one scale make, together, what one rank with the whole
// matrices makes.
#include "sender_daemon/views/rank_amax.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "proto/view_amax.pb.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tests/common/delta/samples.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr StreamId kStream{.incarnation = 7, .id_hi = 1, .id_lo = 2};

// By rank, its cells on the first and second cut of each tensor; the last one has everything.
std::vector<RankLayout> Layouts() {
  const auto layout = [](CellBox rows, CellBox grid, CellBox stack) {
    return MakeLayout({{.tensor = {.name = "a.gate.weight",
                                   .dtype = DType::kBF16,
                                   .shape = {300, 512},
                                   .cuts = {{0, {100, 200}}}},
                        .cells = std::move(rows)},
                       {.tensor = {.name = "a.up.weight",
                                   .dtype = DType::kBF16,
                                   .shape = {200, 512},
                                   .cuts = {{0, {64}}, {1, {256}}}},
                        .cells = std::move(grid)},
                       {.tensor = {.name = "e.weight",
                                   .dtype = DType::kBF16,
                                   .shape = {4, 40, 128},
                                   .cuts = {{0, {2, 3}}, {2, {64}}}},
                        .cells = std::move(stack)}});
  };
  return {layout({{0, 1}}, {{0, 2}, {0, 1}}, {{0, 2}, {0, 1}}),
          layout({{1, 1}}, {{0, 1}, {1, 1}}, {{0, 2}, {1, 1}}),
          layout({{2, 1}}, {{1, 1}, {1, 1}}, {{2, 1}, {0, 2}}),
          layout({{0, 3}}, {{0, 2}, {0, 2}}, {{0, 3}, {0, 2}})};
}

struct Rank {
  RankStatePtr state;
  std::unique_ptr<ViewSnapshot> view;
  Weights weights;
  CapturedVersion captured;
};

struct Scene {
  samples::Random random = samples::Random(samples::TestSeed());
  ThreadPool pool = ThreadPool(2);
  std::vector<Rank> ranks;  // the last one has everything

  explicit Scene(const std::string& name) {
    for (const RankLayout& layout : Layouts()) {
      Rank& rank = ranks.emplace_back();
      rank.state = MakeState(layout, kNoLimits);
      auto view = ViewSnapshot::Create(name, rank.state, kNoLimits);
      REQUIRE(view.ok());
      rank.view = *std::move(view);
      for (const RankLayout::SliceEntry& slice : layout.slices()) {
        rank.weights.emplace_back(slice.size_bytes());
      }
    }
    Change(1.0);
  }
  Rank& whole() { return ranks.back(); }
  size_t parts() const { return ranks.size() - 1; }

  // Steps of one, or other elements, in the whole; then in the parts.
  void Change(double density) {
    for (std::vector<std::byte>& slice : whole().weights) {
      // A large one that is gone with a later version.
      const size_t large = 2 * random.Below(slice.size() / 2);
      for (size_t at = 0; at < slice.size(); at += 2) {
        const auto old = LoadLe<uint16_t>(slice.data() + at);
        uint16_t next = density >= 1 || old >= 0x4000 ? 0x3C00 + random.Below(0x80) : old;
        if (random.Chance(density)) next += 1;
        if (at == large && random.Chance(0.5)) next = 0x4100 + random.Below(0x40);
        StoreLe(slice.data() + at, next);
      }
    }
    for (size_t r = 0; r < parts(); ++r) {
      for (uint32_t s = 0; s < ranks[r].weights.size(); ++s) {
        ranks[r].weights[s] = whole().weights[InWhole(r, RankSlice(s)).value()];
      }
    }
  }
  RankSlice InWhole(size_t rank, RankSlice slice) {
    const RankLayout& layout = ranks[rank].state->layout();
    const auto found =
        whole().state->layout().Find(layout.tensor(slice).name, layout.slice(slice).slice);
    REQUIRE(found.has_value());
    return *found;
  }
  // All ranks capture the version, and measure it.
  void Capture(uint64_t version) {
    for (Rank& rank : ranks) {
      rank.captured = CaptureAll(*rank.state, pool, version, rank.weights);
      rank.view->Measure(WeightVersion(version), &rank.captured, pool);
    }
    whole().view->CaptureVersion(WeightVersion(version), &whole().captured, pool);
  }
  std::vector<std::byte> MessageOf(size_t rank, uint64_t version) {
    const ViewSnapshot& view = *ranks[rank].view;
    return AmaxMessage({kStream, WeightVersion(version)}, view.view(), view.trainer().layout(),
                       ranks[rank].view->Measure(WeightVersion(version), nullptr, pool));
  }
  OtherAmax Collect(size_t rank, uint64_t version) {
    const ViewSnapshot& view = *ranks[rank].view;
    return {{kStream, WeightVersion(version)}, view.view(), view.trainer().layout()};
  }
  // A rank takes what the others say.
  void Complete(size_t rank, uint64_t version) {
    OtherAmax all = Collect(rank, version);
    for (size_t other = 0; other < parts(); ++other) {
      if (other != rank) REQUIRE(all.Add(MessageOf(other, version)).ok());
    }
    const auto others = std::move(all).Finish();
    REQUIRE(others.ok());
    Rank& one = ranks[rank];
    one.view->CaptureVersion(WeightVersion(version), &one.captured, pool, &*others);
  }
  void CheckPart(size_t rank) {
    const RankState& part = *ranks[rank].view->state();
    const RankState& all = *whole().view->state();
    for (uint32_t s = 0; s < part.layout().slice_count(); ++s) {
      const auto in_all = all.layout().Find(part.layout().tensor(RankSlice(s)).name,
                                            part.layout().slice(RankSlice(s)).slice);
      REQUIRE(in_all.has_value());
      INFO("rank " << rank << ", tensor " << part.layout().tensor(RankSlice(s)).name);
      const ByteSpan found = part.snapshot->SliceBytes(RankSlice(s));
      REQUIRE(std::ranges::equal(found, all.snapshot->SliceBytes(*in_all)));
    }
  }
};

TEST_CASE("parts of matrices are quantised with the amax of the whole", "[views]") {
  Scene scene(GENERATE("nvfp4/modelopt,share=gate+up", "nvfp4/compressed-tensors",
                       "fp8-tensor/vllm,share=gate+up", "fp8-tensor/compressed-tensors"));
  CAPTURE(samples::TestSeed());
  CHECK_FALSE(scene.whole().view->is_divided());
  for (uint64_t version = 1; version < 12; ++version) {
    scene.Capture(version);
    for (size_t rank = 0; rank < scene.parts(); ++rank) {
      CHECK(scene.ranks[rank].view->is_divided());
      // A rank may leave versions out.
      if (version % 3 == rank) continue;
      scene.Complete(rank, version);
      scene.CheckPart(rank);
    }
    scene.Change(version % 4 == 3 ? 0.3 : 0.002);
  }
}

TEST_CASE("the amax of another version, stream or view is refused", "[views]") {
  Scene scene("nvfp4/modelopt,share=gate+up");
  scene.Capture(1);
  const std::vector<std::byte> message = scene.MessageOf(1, 1);
  const auto why = [](const Status& status) { return std::string(Message(status)); };
  CHECK_THAT(why(scene.Collect(0, 2).Add(message)),
             Contains("at version 2") && Contains("at version 1 "));
  const ViewSnapshot& view = *scene.ranks[0].view;
  OtherAmax other({{.incarnation = 8, .id_hi = 1, .id_lo = 2}, WeightVersion(1)}, view.view(),
                  view.trainer().layout());
  CHECK_THAT(why(other.Add(message)), Contains("of stream 8:") && Contains("of stream 7:"));
  Scene second("nvfp4/modelopt");
  second.Capture(1);
  CHECK_THAT(why(scene.Collect(0, 1).Add(second.MessageOf(1, 1))), Contains("share=gate+up"));
  CHECK_THAT(why(scene.Collect(0, 1).Add(ByteSpan(message).first(message.size() - 1))),
             Contains("no such message"));
  v1::ViewAmax negative;
  REQUIRE(negative.ParseFromArray(message.data(), static_cast<int>(message.size())));
  std::string& amax = *negative.mutable_slices(0)->mutable_amax();
  amax[1] = static_cast<char>(amax[1] | 0x80);
  CHECK_THAT(why(scene.Collect(0, 1).Add(AsBytes(negative.SerializeAsString()))),
             Contains("without a sign, found bits 0x"));
}

TEST_CASE("every part comes from exactly one rank", "[views]") {
  Scene scene("fp8-tensor/vllm");
  scene.Capture(1);
  OtherAmax all = scene.Collect(0, 1);
  REQUIRE(all.Add(scene.MessageOf(1, 1)).ok());
  const Status twice = all.Add(scene.MessageOf(1, 1));
  CHECK_THAT(std::string(Message(twice)), Contains("belongs to two trainer ranks"));
  OtherAmax some = scene.Collect(0, 1);
  REQUIRE(some.Add(scene.MessageOf(1, 1)).ok());
  const auto lacking = std::move(some).Finish();
  CHECK(lacking.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(Message(lacking.status())),
             Contains("tensor a.gate.weight") && Contains("found 2 of 3"));
}

}  // namespace
}  // namespace dws
