// Rank layouts number the slices of their shards, and different layouts have different signatures.
#include "common/model/layout.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "common/model/limits.h"

namespace dws {
namespace {

// `cuts` are on dimension 0.
Shard MakeShard(std::string name, std::vector<uint64_t> shape, std::vector<uint64_t> cuts,
                uint32_t first_slice, uint32_t slice_count) {
  Shard shard;
  shard.tensor.name = std::move(name);
  shard.tensor.shape = std::move(shape);
  if (cuts.empty()) return shard;
  shard.tensor.cuts = {{.dim = 0, .at = std::move(cuts)}};
  shard.cells = {{first_slice, slice_count}};
  return shard;
}

std::vector<Shard> Shards() {
  return {MakeShard("a", {100'000}, {}, 0, 1), MakeShard("b", {9, 3}, {2, 4, 7}, 1, 3),
          MakeShard("c", {0, 4}, {}, 0, 1)};
}

void RequireRefused(std::vector<Shard> shards, std::string_view word) {
  const Status status = RankLayout::Create(std::move(shards)).status();
  INFO(ToString(status));
  REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(Message(status).find(word) != std::string_view::npos);
}

}  // namespace

TEST_CASE("rank slices are numbered through all shards", "[model]") {
  const Result<RankLayout> layout = RankLayout::Create(Shards());
  REQUIRE(layout.ok());
  REQUIRE(layout->slice_count() == 5);
  REQUIRE(layout->Find("a", 0) == RankSlice(0));
  REQUIRE(layout->Find("b", 1) == RankSlice(1));
  REQUIRE(layout->Find("b", 3) == RankSlice(3));
  REQUIRE(layout->Find("c", 0) == RankSlice(4));
  REQUIRE_FALSE(layout->Find("b", 0).has_value());  // another rank's
  REQUIRE_FALSE(layout->Find("b", 4).has_value());
  REQUIRE_FALSE(layout->Find("bb", 1).has_value());
  REQUIRE(layout->slice(RankSlice(2)).slice == 2);
  REQUIRE(layout->slice(RankSlice(2)).elements == 9);
  REQUIRE(layout->slice(RankSlice(2)).first_word ==
          2 + 2);  // slices 0 and 1 of 6 elements of 2 bytes
  REQUIRE(layout->slice(RankSlice(1)).first_block == 2);
  REQUIRE(layout->slice(RankSlice(4)).blocks == 0);
  REQUIRE(layout->tensor(RankSlice(3)).name == "b");
  REQUIRE(layout->element_count() == 100'000 + 21);
  REQUIRE(layout->size_bytes() == 2 * (100'000 + 21));
  REQUIRE(layout->block_count() == 5);
}

TEST_CASE("a rank owns a box of a grid, whose slices are numbered in row-major order", "[model]") {
  Shard shard = MakeShard("g", {9, 5, 6}, {2, 4, 7}, 1, 2);
  shard.tensor.cuts.push_back({.dim = 2, .at = {1, 4}});
  shard.cells.push_back({.first = 1, .count = 2});
  const Result<RankLayout> layout = RankLayout::Create({shard});
  REQUIRE(layout.ok());
  REQUIRE(layout->slice_count() == 4);
  // Rows of cells have three: the box is cells 1 and 2 of rows 1 and 2.
  std::vector<uint32_t> slices;
  for (const RankLayout::SliceEntry& entry : layout->slices()) slices.push_back(entry.slice);
  CHECK(slices == std::vector<uint32_t>{4, 5, 7, 8});
  CHECK(layout->slice(RankSlice(0)).elements == 2 * 5 * 3);
  CHECK(layout->slice(RankSlice(3)).elements == 3 * 5 * 2);
  CHECK(layout->element_count() == (2 + 3) * 5 * (3 + 2));
  for (uint32_t s = 0; s < 12; ++s) {
    const auto found = std::find(slices.begin(), slices.end(), s);
    REQUIRE(layout->Find("g", s).has_value() == (found != slices.end()));
    if (found != slices.end()) {
      CHECK(*layout->Find("g", s) == RankSlice(static_cast<uint32_t>(found - slices.begin())));
    }
  }
  CHECK_FALSE(layout->Find("g", 12 + 4).has_value());
  const std::vector<DimRange> owned = RangesOf(shard.tensor, shard.cells);
  CHECK(owned == std::vector<DimRange>{{2, 7}, {0, 5}, {1, 6}});
}

TEST_CASE("the words of a slice follow those of the slices before it in its tensor", "[model]") {
  const Result<RankLayout> layout = RankLayout::Create(Shards());
  REQUIRE(layout.ok());
  for (const RankLayout::SliceEntry& entry : layout->slices()) {
    const TensorSpec& tensor = layout->shards()[entry.shard].tensor;
    REQUIRE(entry.first_word == tensor.FirstWords(std::vector<uint32_t>{entry.slice})[0]);
  }
}

TEST_CASE("layouts that differ anywhere have different signatures", "[model]") {
  std::vector<std::vector<Shard>> variants(14, Shards());
  variants[1][0].tensor.name = "A";
  variants[2][0].tensor.dtype = DType::kF16;
  variants[3][0].tensor.shape = {100'000, 1};
  variants[4][0].tensor.shape = {100'001};
  variants[5][1].tensor.cuts = {{0, {2, 4, 6}}};
  variants[6][1].cells = {{0, 3}};
  variants[7][1].cells = {{1, 2}};
  variants[8].pop_back();
  variants[9][0].tensor.shape = {10, 10'000};
  variants[10][2].tensor.shape = {4, 0};
  variants[11][1].tensor.cuts = {{1, {1, 2}}};
  variants[11][1].cells = {{1, 2}};
  variants[12][1].tensor.cuts = {{0, {2, 4, 7}}, {1, {1}}};
  variants[12][1].cells = {{1, 3}, {0, 2}};
  variants[13] = variants[12];
  variants[13][1].cells = {{1, 3}, {0, 1}};
  std::set<std::pair<uint64_t, uint64_t>> signatures;
  for (const std::vector<Shard>& variant : variants) {
    const Result<RankLayout> layout = RankLayout::Create(variant);
    REQUIRE(layout.ok());
    signatures.emplace(layout->signature().lane0, layout->signature().lane1);
  }
  REQUIRE(signatures.size() == variants.size());
  REQUIRE(RankLayout::Create(Shards())->signature() == RankLayout::Create(Shards())->signature());
}

TEST_CASE("impossible layouts are refused and the error names the tensor", "[model]") {
  RequireRefused({}, "no tensors");
  RequireRefused({MakeShard("b", {1}, {}, 0, 1), MakeShard("a", {1}, {}, 0, 1)}, "'a' follows 'b'");
  RequireRefused({MakeShard("a", {1}, {}, 0, 1), MakeShard("a", {1}, {}, 0, 1)}, "'a' follows 'a'");
  RequireRefused({MakeShard("a", {9}, {3}, 0, 0)}, "'a': slices 0 + 0");
  RequireRefused({MakeShard("a", {9}, {3}, 2, 1)}, "'a': slices 2 + 1");
  RequireRefused({MakeShard("a", {9}, {3}, 1, 2)}, "'a': slices 1 + 2");
  RequireRefused({MakeShard("a", {9}, {3}, 1, 0xFFFFFFFF)}, "'a': slices");
  RequireRefused({MakeShard("a", {9}, {9}, 0, 1)}, "cut 9");
  Shard grid = MakeShard("a", {9, 9}, {3}, 0, 1);
  grid.tensor.cuts.push_back({.dim = 1, .at = {4}});
  RequireRefused({grid}, "'a': 1 ranges of cells, expected 2");
  grid.cells.push_back({.first = 1, .count = 2});
  RequireRefused({grid}, "'a': slices 1 + 2 on dim 1 are outside its 2");
  Shard whole = MakeShard("a", {9}, {}, 0, 1);
  whole.cells = {{0, 1}};
  RequireRefused({whole}, "'a': 1 ranges of cells, expected 0");
}

TEST_CASE("state tokens depend on every digest and on their order", "[model]") {
  const Digest a{.lane0 = 1, .lane1 = 2};
  const Digest b{.lane0 = 2, .lane1 = 1};
  REQUIRE_FALSE(StateToken({a, b}) == StateToken({b, a}));
  REQUIRE_FALSE(StateToken({a}) == StateToken({a, a}));
  REQUIRE_FALSE(StateToken({a, b}) == StateToken({a, a}));
  REQUIRE(StateToken({a, b}) == StateToken({a, b}));
}

}  // namespace dws
