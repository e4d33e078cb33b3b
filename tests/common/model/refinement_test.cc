// Finer layouts keep what each rank owns, whatever is cut in whatever order.
#include "common/model/refinement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "common/model/limits.h"

namespace dws {
namespace {

std::vector<Cuts> RandomCuts(const std::vector<uint64_t>& shape, std::mt19937_64& random) {
  std::vector<Cuts> cuts;
  for (uint32_t dim = 0; dim < shape.size(); ++dim) {
    std::set<uint64_t> at;
    for (uint64_t i = random() % 4; i > 0 && shape[dim] > 1; --i) {
      at.insert(1 + random() % (shape[dim] - 1));
    }
    if (!at.empty()) cuts.push_back({.dim = dim, .at = {at.begin(), at.end()}});
  }
  return cuts;
}

Shard RandomShard(const std::string& name, std::mt19937_64& random) {
  Shard shard{.tensor = {.name = name}, .cells = {}};
  for (uint64_t i = random() % 4; i > 0; --i) shard.tensor.shape.push_back(1 + random() % 9);
  shard.tensor.cuts = RandomCuts(shard.tensor.shape, random);
  for (const Cuts& along : shard.tensor.cuts) {
    const auto first = static_cast<uint32_t>(random() % along.cell_count());
    const auto count = static_cast<uint32_t>(1 + random() % (along.cell_count() - first));
    shard.cells.push_back({.first = first, .count = count});
  }
  return shard;
}

RankLayout Create(std::vector<Shard> shards) {
  auto layout = RankLayout::Create(std::move(shards));
  REQUIRE(layout.ok());
  return *std::move(layout);
}

bool Has(const std::vector<Cuts>& cuts, const std::vector<Cuts>& wished) {
  return std::ranges::all_of(wished, [&](const Cuts& wish) {
    return std::ranges::any_of(cuts, [&](const Cuts& along) {
      return along.dim == wish.dim && std::ranges::includes(along.at, wish.at);
    });
  });
}

RankLayout Rows(std::vector<uint64_t> cuts, CellBox cells) {
  return Create({{.tensor = {.name = "w", .shape = {10, 6}, .cuts = {{.dim = 0, .at = cuts}}},
                  .cells = std::move(cells)}});
}

// The layout of one rank that owns the whole tensor.
RankLayout Stack(std::vector<uint64_t> shape, std::vector<Cuts> cuts) {
  return Create({Shard::Whole({.name = "w", .shape = std::move(shape), .cuts = std::move(cuts)})});
}

bool Contains(const std::vector<DimRange>& outer, const std::vector<DimRange>& inner) {
  return std::ranges::equal(outer, inner, [](const DimRange& a, const DimRange& b) {
    return a.begin <= b.begin && b.end <= a.end;
  });
}

// All boxes of cells.
std::vector<std::vector<DimRange>> Boxes(const TensorSpec& spec) {
  std::vector<CellBox> boxes = {{}};
  for (const Cuts& along : spec.cuts) {
    std::vector<CellBox> more;
    for (const CellBox& box : boxes) {
      for (uint32_t first = 0; first < along.cell_count(); ++first) {
        for (uint32_t count = 1; first + count <= along.cell_count(); ++count) {
          more.push_back(box);
          more.back().push_back({.first = first, .count = count});
        }
      }
    }
    boxes = std::move(more);
  }
  std::vector<std::vector<DimRange>> ranges;
  for (const CellBox& box : boxes) ranges.push_back(RangesOf(spec, box));
  return ranges;
}

// Tries every array that holds a box of cells.
bool LosesPlaces(const TensorSpec& coarse, const TensorSpec& finer) {
  for (const std::vector<DimRange>& array : Boxes(coarse)) {
    const std::vector<uint64_t> strides = RowMajorStrides(ShapeOf(array));
    const auto mapped = [&](const std::vector<DimRange>& slice) {
      return RunsWithin(array, slice, strides).ok();
    };
    for (uint32_t c = 0; c < coarse.SliceCount(); ++c) {
      const std::vector<DimRange> cell = coarse.Slice(c);
      if (!Contains(array, cell) || !mapped(cell)) continue;
      for (uint32_t f = 0; f < finer.SliceCount(); ++f) {
        const std::vector<DimRange> part = finer.Slice(f);
        if (Contains(cell, part) && !mapped(part)) return true;
      }
    }
  }
  return false;
}

}  // namespace

TEST_CASE("a finer layout has the same elements of each tensor and all boundaries", "[model]") {
  const auto seed = GENERATE(take(200, random(0U, ~0U)));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<Shard> shards;
  CutWishes first;
  CutWishes second;
  for (const char* const name : {"a", "b", "c"}) {
    shards.push_back(RandomShard(name, random));
    first[name] = RandomCuts(shards.back().tensor.shape, random);
    if (random() % 2 == 0) second[name] = RandomCuts(shards.back().tensor.shape, random);
  }
  first["not here"] = {{.dim = 0, .at = {1}}};
  const RankLayout layout = Create(shards);
  const auto finer = Refined(layout, first);
  REQUIRE(finer.ok());
  CHECK(SameButCuts(layout, *finer));
  CHECK(Lacking(*finer, first).empty());
  for (const Shard& shard : finer->shards())
    CHECK(Has(shard.tensor.cuts, first[shard.tensor.name]));
  CHECK(*Refined(layout, Lacking(layout, first)) == *finer);
  // Nothing is lacking exactly when nothing changes.
  CHECK(Lacking(layout, first).empty() == (*finer == layout));

  // In either order, or both at once.
  const auto then = Refined(*finer, second);
  const auto other = Refined(*Refined(layout, second), first);
  Merge(first, second);
  REQUIRE(then.ok());
  CHECK(*then == *other);
  CHECK(*then == *Refined(layout, first));
}

TEST_CASE("the cells of a rank are divided where they are cut", "[model]") {
  const RankLayout layout = Rows({4}, {{1, 1}});  // rows 4 to 10
  const auto finer = Refined(layout, {{"w", {{.dim = 0, .at = {2, 7}}, {.dim = 1, .at = {3}}}}});
  REQUIRE(finer.ok());
  const Shard& shard = finer->shards()[0];
  CHECK(shard.tensor.cuts[0].at == std::vector<uint64_t>{2, 4, 7});
  CHECK(shard.cells == CellBox{{.first = 2, .count = 2}, {.first = 0, .count = 2}});
}

TEST_CASE("boundaries that do not fit the tensor are refused by its name", "[model]") {
  const RankLayout layout = Rows({4}, {{0, 2}});
  std::vector<uint64_t> many(limits::kCutsMax + 1);
  for (size_t i = 0; i < many.size(); ++i) many[i] = i + 1;
  for (const Cuts& wish : {Cuts{.dim = 0, .at = {10}}, Cuts{.dim = 0, .at = {0}},
                           Cuts{.dim = 2, .at = {1}}, Cuts{.dim = 1, .at = many}}) {
    const Status refused = Refined(layout, {{"w", {wish}}}).status();
    CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
    CHECK(Message(refused).find("'w'") != std::string_view::npos);
  }
}

TEST_CASE("layouts differ in more than cuts when a rank has other elements", "[model]") {
  const RankLayout rows = Rows({4}, {{0, 1}});
  CHECK(SameButCuts(rows, Rows({2, 4}, {{0, 2}})));
  CHECK_FALSE(SameButCuts(rows, Rows({2, 4}, {{0, 1}})));
  CHECK_FALSE(SameButCuts(rows, Rows({4}, {{1, 1}})));
}

TEST_CASE("cuts by which an array of larger parts could not be mapped are refused", "[model]") {
  const std::vector<uint64_t> shape = {4, 256, 256};
  const Cuts rows{.dim = 1, .at = {128}};
  const Cuts columns{.dim = 2, .at = {128}};
  const RankLayout layout = Stack(shape, {rows});
  const Status refused = CheckKeepsParts(layout, *Refined(layout, {{"w", {columns}}}));
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(refused).find("'w'") != std::string_view::npos);
  CHECK(Message(refused).find("dim 2 at {128}") != std::string_view::npos);
  // The other dimensions, or columns of single experts.
  const CutWishes experts = {{"w", {{.dim = 0, .at = {2}}, {.dim = 1, .at = {64, 192}}}}};
  CHECK(CheckKeepsParts(layout, *Refined(layout, experts)).ok());
  const CutWishes single = {{"w", {{.dim = 0, .at = {1, 2, 3}}, columns}}};
  CHECK(CheckKeepsParts(layout, *Refined(layout, single)).ok());
  // Where both are declared nobody can hold it whole; all rows of an expert can still be held.
  const RankLayout both = Stack(shape, {rows, columns});
  CHECK(CheckKeepsParts(both, *Refined(both, {{"w", {{.dim = 0, .at = {2}}}}})).ok());
  CHECK_FALSE(CheckKeepsParts(both, *Refined(both, {{"w", {{.dim = 1, .at = {64}}}}})).ok());
}

TEST_CASE("exactly the cuts that lose a place are refused", "[model]") {
  const auto seed = GENERATE(take(1000, random(0U, ~0U)));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> shape;
  for (uint64_t i = random() % 5; i > 0; --i) shape.push_back(1 + random() % 4);
  const RankLayout layout = Stack(shape, RandomCuts(shape, random));
  const RankLayout finer = *Refined(layout, {{"w", RandomCuts(shape, random)}});
  const TensorSpec& coarse = layout.shards()[0].tensor;
  INFO(ToString(coarse) << ", then " << ToString(finer.shards()[0].tensor));
  CHECK(CheckKeepsParts(layout, finer).ok() == !LosesPlaces(coarse, finer.shards()[0].tensor));
}

}  // namespace dws
