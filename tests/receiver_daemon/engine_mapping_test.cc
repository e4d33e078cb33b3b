#include "receiver_daemon/weights/engine_mapping.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

namespace dws {
namespace {

std::shared_ptr<const RankLayout> MakeRank(std::vector<Shard> shards) {
  auto layout = RankLayout::Create(std::move(shards));
  REQUIRE(layout.ok());
  return std::make_shared<const RankLayout>(*std::move(layout));
}

TensorSpec Spec(std::string name, std::vector<uint64_t> shape, uint32_t cut_dim = 0,
                std::vector<uint64_t> cuts = {}) {
  return {.name = std::move(name),
          .dtype = DType::kBF16,
          .shape = std::move(shape),
          .cuts = cuts.empty() ? std::vector<Cuts>{}
                               : std::vector<Cuts>{{.dim = cut_dim, .at = std::move(cuts)}}};
}

LayoutSetPtr MakeSet(std::vector<std::shared_ptr<const RankLayout>> ranks) {
  auto set = LayoutSet::Create(std::move(ranks));
  REQUIRE(set.ok());
  return *std::move(set);
}

// One rank: q and k [4, 6], down [4, 6] cut on dim 1 at {2, 4}.
LayoutSetPtr Layouts() {
  return MakeSet({MakeRank({{.tensor = Spec("down", {4, 6}, 1, {2, 4}), .cells = {{0, 3}}},
                            {.tensor = Spec("k", {4, 6})},
                            {.tensor = Spec("q", {4, 6})}})});
}

EngineView Whole(std::string tensor, std::vector<uint64_t> shape, uint64_t offset_bytes,
                 std::vector<uint64_t> strides = {}) {
  if (strides.empty()) strides = RowMajorStrides(shape);
  return {.engine_name = "engine." + tensor,
          .tensor = std::move(tensor),
          .shape = std::move(shape),
          .strides = std::move(strides),
          .offset_bytes = offset_bytes};
}

EngineView Columns(uint64_t begin, uint64_t end, uint64_t offset_bytes) {
  EngineView view = Whole("down", {4, end - begin}, offset_bytes);
  view.ranges = {{.dim = 1, .range = {.begin = begin, .end = end}}};
  return view;
}

Result<EngineMapping> Map(const std::vector<EngineView>& views, uint64_t region_bytes = 1024,
                          std::vector<std::string> excluded = {}) {
  const std::vector<uint64_t> regions = {region_bytes};
  return MapEngine(*Layouts(), views, regions, std::move(excluded));
}

void CheckRefused(const Result<EngineMapping>& mapping, const std::string& words) {
  REQUIRE(absl::IsInvalidArgument(mapping.status()));
  INFO(Message(mapping.status()));
  CHECK(Message(mapping.status()).find(words) != std::string_view::npos);
}

}  // namespace

TEST_CASE("a whole tensor that is cut by columns becomes strided slices", "[mapping]") {
  const auto mapping = Map({Whole("down", {4, 6}, 8)});
  REQUIRE(mapping.ok());
  REQUIRE(mapping->slices.size() == 3);
  for (uint32_t s = 0; s < 3; ++s) {
    CHECK(mapping->slices[s].slice.slice == RankSlice(s));
    CHECK(mapping->slices[s].offset_bytes == 8 + s * 2 * 2);
    CHECK(mapping->slices[s].runs.run_elements == 2);
    CHECK(mapping->slices[s].runs.run_count == 4);
    CHECK(mapping->slices[s].runs.stride_elements == 6);
  }
}

TEST_CASE("a column-parallel engine holds a packed union of slices", "[mapping]") {
  const auto mapping = Map({Columns(2, 6, 0)});
  REQUIRE(mapping.ok());
  REQUIRE(mapping->slices.size() == 2);
  CHECK(mapping->slices[0].slice.slice == RankSlice(1));
  CHECK(mapping->slices[0].offset_bytes == 0);
  CHECK(mapping->slices[1].offset_bytes == 4);
  CHECK(mapping->slices[1].runs.stride_elements == 4);
  CHECK(mapping->ranges[0].cells == CellBox{{1, 2}});
}

TEST_CASE("an engine with columns holds them of every trainer's rows", "[mapping]") {
  // Two trainers with 3 and 5 rows; engines hold halves of the 6 columns.
  TensorSpec spec = Spec("w", {8, 6}, 0, {3});
  spec.cuts.push_back({.dim = 1, .at = {3}});
  const auto set = MakeSet({MakeRank({{.tensor = spec, .cells = {{0, 1}, {0, 2}}}}),
                            MakeRank({{.tensor = spec, .cells = {{1, 1}, {0, 2}}}})});
  EngineView right = Whole("w", {8, 3}, 4);
  right.ranges = {{.dim = 1, .range = {.begin = 3, .end = 6}}};
  const std::vector<uint64_t> regions = {4 + 8 * 3 * 2};
  const auto mapping = MapEngine(*set, std::vector<EngineView>{right}, regions, {});
  REQUIRE(mapping.ok());
  CHECK(mapping->ranges[0].cells == CellBox{{0, 2}, {1, 1}});
  REQUIRE(mapping->slices.size() == 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(mapping->slices[rank].slice == OwnedSlice{TrainerRank(rank), RankSlice(1)});
    CHECK(mapping->slices[rank].offset_bytes == 4 + rank * 3 * 3 * 2);
    CHECK(mapping->slices[rank].runs.run_elements == (rank == 0 ? 9 : 15));
    CHECK(mapping->slices[rank].runs.run_count == 1);
  }
}

TEST_CASE("a view may be a box of several dimensions, and nothing between the cuts", "[mapping]") {
  TensorSpec spec = Spec("w", {4, 2, 6}, 0, {1, 3});
  spec.cuts.push_back({.dim = 2, .at = {2}});
  const auto set = MakeSet({MakeRank({Shard::Whole(spec)})});
  const std::vector<uint64_t> regions = {1024};
  const auto map = [&](std::vector<uint64_t> shape, std::vector<ViewRange> ranges) {
    EngineView view = Whole("w", std::move(shape), 0);
    view.ranges = std::move(ranges);
    return MapEngine(*set, std::vector<EngineView>{view}, regions, {});
  };
  const auto box = map({3, 2, 4}, {{0, {1, 4}}, {2, {2, 6}}});
  REQUIRE(box.ok());
  REQUIRE(box->slices.size() == 2);
  CHECK(box->slices[0].slice.slice == RankSlice(3));
  CHECK(box->slices[1].slice.slice == RankSlice(5));
  CHECK(box->slices[1].offset_bytes == 2 * 2 * 4 * 2);
  CHECK(box->slices[1].runs.run_elements == 8);
  CheckRefused(map({2, 2, 4}, {{0, {1, 3}}, {2, {1, 5}}}), "Declare cuts at 1 and 5 on dim 2");
  CheckRefused(map({4, 1, 6}, {{1, {0, 1}}}), "Declare cuts at 0 and 1 on dim 1");
  CheckRefused(map({2, 2, 6}, {{2, {0, 6}}, {0, {1, 3}}}), "by ascending dimension");
  CheckRefused(map({3, 2, 4}, {{0, {1, 3}}, {2, {2, 6}}}), "expected [2, 2, 4]");
}

TEST_CASE("boxes of one tensor that overlap without being equal are refused", "[mapping]") {
  TensorSpec spec = Spec("w", {4, 6}, 0, {2});
  spec.cuts.push_back({.dim = 1, .at = {3}});
  const auto set = MakeSet({MakeRank({Shard::Whole(spec)})});
  const std::vector<uint64_t> regions = {1024};
  EngineView rows = Whole("w", {2, 6}, 0);
  rows.ranges = {{.dim = 0, .range = {.begin = 0, .end = 2}}};
  EngineView columns = Whole("w", {4, 3}, 512);
  columns.ranges = {{.dim = 1, .range = {.begin = 3, .end = 6}}};
  const auto mapping = MapEngine(*set, std::vector<EngineView>{rows, columns}, regions, {});
  REQUIRE(mapping.ok());
  const EngineMapping* const held[] = {&*mapping};
  const Status status = CheckCoverage(*set, held);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Message(status).find("cells 0 + 2 on dim 0, 1 + 1 on dim 1") != std::string_view::npos);
}

TEST_CASE("a fused projection is two views on one parameter, by rows or by columns", "[mapping]") {
  CHECK(Map({Whole("q", {4, 6}, 0), Whole("k", {4, 6}, 48)}).ok());
  // [4, 12]: q in the left half of each row, k in the right.
  CHECK(Map({Whole("q", {4, 6}, 0, {12, 1}), Whole("k", {4, 6}, 12, {12, 1})}).ok());
}

TEST_CASE("a range that is not a union of slices is refused and the grid is named", "[mapping]") {
  CheckRefused(Map({Columns(1, 4, 0)}), "BF16 [4, 6] cut on dim 1 at {2, 4}");
  CheckRefused(Map({Columns(2, 5, 0)}), "not a union of the slices");
  EngineView rows = Whole("down", {2, 6}, 0);
  rows.ranges = {{.dim = 0, .range = {.begin = 0, .end = 2}}};
  CheckRefused(Map({rows}), "not a union of the slices");
  CheckRefused(Map({Columns(4, 8, 0)}), "[4, 8) of dim 1");
}

TEST_CASE("unknown names, other types and other shapes are refused by name", "[mapping]") {
  CheckRefused(Map({Whole("qq", {4, 6}, 0)}), "tensor 'qq'");
  EngineView cast = Whole("q", {4, 6}, 0);
  cast.dtype = DType::kF16;
  CheckRefused(Map({cast}), "bit-exact");
  CheckRefused(Map({Whole("q", {6, 4}, 0)}), "has shape [6, 4], expected [4, 6]");
  CheckRefused(Map({}, 1024, {"nothing"}), "excluded tensor 'nothing'");
}

TEST_CASE("a view that is strided in two dimensions is refused and named", "[mapping]") {
  // A [2, 2, 2] tensor inside a larger one, strided in two dimensions.
  const auto set = MakeSet({MakeRank({{.tensor = Spec("cube", {2, 2, 2})}})});
  const std::vector<uint64_t> regions = {1024};
  const std::vector<EngineView> views = {Whole("cube", {2, 2, 2}, 0, {100, 10, 1})};
  CheckRefused(MapEngine(*set, views, regions, {}), "engine.cube");
}

TEST_CASE("a view that reaches beyond its region is refused whatever its strides", "[mapping]") {
  CHECK(Map({Whole("q", {4, 6}, 0)}, 48).ok());
  CheckRefused(Map({Whole("q", {4, 6}, 2)}, 48), "reaches beyond its region 0 of 48 bytes");
  CheckRefused(Map({Whole("q", {4, 6}, 0, {uint64_t{1} << 63, 1})}), "reaches beyond");
  CheckRefused(Map({Whole("q", {4, 6}, ~uint64_t{1})}), "reaches beyond");
  CheckRefused(Map({Whole("q", {4, 6}, 1)}), "multiple of its element's 2");
  EngineView elsewhere = Whole("q", {4, 6}, 0);
  elsewhere.region = 1;
  CheckRefused(Map({elsewhere}), "region 1");
}

TEST_CASE("views that share bytes are refused and interleaved views are accepted", "[mapping]") {
  CheckRefused(Map({Whole("q", {4, 6}, 0), Whole("k", {4, 6}, 46)}), "overlap");
  CheckRefused(Map({Whole("q", {4, 6}, 0), Whole("k", {4, 6}, 0)}), "overlap");
  // Rows of 6 elements, 12 and 11 apart: some of them overlap.
  CheckRefused(Map({Whole("q", {4, 6}, 0, {12, 1}), Whole("k", {4, 6}, 12, {11, 1})}), "overlap");
  // A view between the runs of another.
  const auto set =
      MakeSet({MakeRank({{.tensor = Spec("bias", {6})}, {.tensor = Spec("q", {4, 6})}})});
  const std::vector<uint64_t> regions = {1024};
  const std::vector<EngineView> between = {Whole("q", {4, 6}, 0, {12, 1}), Whole("bias", {6}, 12)};
  CHECK(MapEngine(*set, between, regions, {}).ok());
}

TEST_CASE("every slice is held by some rank or its tensor is excluded", "[mapping]") {
  const LayoutSetPtr set = Layouts();
  const auto left = Map({Columns(0, 2, 0), Whole("q", {4, 6}, 100)}, 1024, {"k"});
  const auto right = Map({Columns(2, 6, 0), Whole("q", {4, 6}, 100)});
  REQUIRE(left.ok());
  REQUIRE(right.ok());
  const std::vector<const EngineMapping*> both = {&*left, &*right};
  CHECK(CheckCoverage(*set, both).ok());

  const std::vector<const EngineMapping*> one = {&*left};
  const Status missing = CheckCoverage(*set, one);
  CHECK(absl::IsInvalidArgument(missing));
  CHECK(Message(missing).find("'down'") != std::string_view::npos);
  CHECK(Message(missing).find("slice 1") != std::string_view::npos);

  // A tensor that one rank excludes may be held by another, but then in full.
  const auto excludes = Map({}, 1024, {"down", "k", "q"});
  REQUIRE(excludes.ok());
  CHECK(CheckCoverage(*set, std::vector<const EngineMapping*>{&*excludes}).ok());
  CHECK(absl::IsInvalidArgument(
      CheckCoverage(*set, std::vector<const EngineMapping*>{&*left, &*excludes})));
}

TEST_CASE("a commit group member holds some slice of every tensor or excludes the tensor",
          "[mapping]") {
  const LayoutSetPtr set = Layouts();
  const auto part = Map({Columns(0, 2, 0), Whole("q", {4, 6}, 100)}, 1024, {"k"});
  const auto without = Map({Columns(0, 2, 0), Whole("q", {4, 6}, 100)});
  REQUIRE(part.ok());
  REQUIRE(without.ok());
  CHECK(CheckCoverage(*set, std::vector<const EngineMapping*>{&*part}, Coverage::kShare).ok());
  const Status missing =
      CheckCoverage(*set, std::vector<const EngineMapping*>{&*without}, Coverage::kShare);
  CHECK(absl::IsInvalidArgument(missing));
  CHECK(Message(missing).find("'k'") != std::string_view::npos);
}

TEST_CASE("overlapping ranges of one tensor are refused unless they are equal", "[mapping]") {
  const LayoutSetPtr set = Layouts();
  const auto first = Map({Columns(0, 4, 0), Whole("k", {4, 6}, 100), Whole("q", {4, 6}, 200)});
  const auto second = Map({Columns(2, 6, 0)});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  const std::vector<const EngineMapping*> both = {&*first, &*second};
  const Status overlap = CheckCoverage(*set, both);
  CHECK(absl::IsInvalidArgument(overlap));
  CHECK(Message(overlap).find("replica") != std::string_view::npos);
}

TEST_CASE("trainer ranks that own rows of one tensor are joined into one tensor", "[layout]") {
  const TensorSpec spec = Spec("w", {8, 2}, 0, {4});
  const auto set = MakeSet({MakeRank({{.tensor = spec, .cells = {{0, 1}}}}),
                            MakeRank({{.tensor = spec, .cells = {{1, 1}}}})});
  const LayoutSet::Tensor* tensor = set->Find("w");
  REQUIRE(tensor != nullptr);
  REQUIRE(tensor->owners.size() == 2);
  CHECK(tensor->owners[1].rank == TrainerRank(1));
  CHECK(tensor->owners[1].slice == RankSlice(0));
}

TEST_CASE("trainer ranks with contradictory layouts are refused", "[layout]") {
  const TensorSpec spec = Spec("w", {8, 2}, 0, {4});
  CHECK(absl::IsFailedPrecondition(
      LayoutSet::Create({MakeRank({{.tensor = spec, .cells = {{1, 1}}}})}).status()));
  CHECK(absl::IsFailedPrecondition(
      LayoutSet::Create({MakeRank({{.tensor = spec, .cells = {{0, 1}}}}),
                         MakeRank({{.tensor = spec, .cells = {{0, 1}}}})})
          .status()));
  CHECK(absl::IsFailedPrecondition(
      LayoutSet::Create({MakeRank({{.tensor = spec, .cells = {{0, 1}}}}),
                         MakeRank({{.tensor = Spec("w", {8, 3}, 0, {4}), .cells = {{1, 1}}}})})
          .status()));
}

}  // namespace dws
