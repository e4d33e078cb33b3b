// What ranks hold: FSDP2 with tensor parallelism as it is done, and what is refused.
#include "common/mesh/mesh.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/common/mesh/naive.h"

namespace dws::mesh {
namespace {

Mesh TwoAxes(uint32_t dp, uint32_t tp) {
  Mesh mesh{.axes = {{.name = "dp", .size = dp}, {.name = "tp", .size = tp}}, .ranks = {}};
  for (uint32_t rank = 0; rank < dp * tp; ++rank) mesh.ranks.push_back(rank);
  return mesh;
}

// The rows that a rank holds, in the order of its memory.
std::vector<uint64_t> RowsOf(const std::vector<Holding>& holdings, uint32_t rank) {
  std::vector<uint64_t> rows;
  for (const Holding& holding : holdings) {
    if (std::count(holding.ranks.begin(), holding.ranks.end(), rank) == 0) continue;
    for (const LocalBox& local : holding.boxes) {
      REQUIRE(local.offset == rows.size() * local.strides[0]);
      for (uint64_t i = 0; i < local.box.extent[0]; ++i) rows.push_back(local.box.lo[0] + i);
    }
  }
  return rows;
}

void RequireRefused(const Status& status, std::string_view word) {
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(Message(status).find(word) != std::string_view::npos);
}

}  // namespace

TEST_CASE("FSDP2 over tensor parallelism holds chunks of the tensor-parallel chunks", "[mesh]") {
  for (uint32_t dp = 1; dp <= 4; ++dp) {
    for (uint32_t tp = 1; tp <= 4; ++tp) {
      const uint64_t rows = uint64_t{dp} * tp * 3;
      const auto holdings = HoldingsOf(TwoAxes(dp, tp), {StridedShard(0, tp), Shard(0)}, {rows, 2});
      REQUIRE(holdings.ok());
      for (uint32_t rank = 0; rank < dp * tp; ++rank) {
        const uint32_t i = rank / tp;
        const uint32_t j = rank % tp;
        const std::vector<uint64_t> held = RowsOf(*holdings, rank);
        REQUIRE(held.size() == 3);
        REQUIRE(held[0] == (uint64_t{j} * dp + i) * 3);
        REQUIRE(held[2] == held[0] + 2);
      }
    }
  }
}

TEST_CASE("uneven strided shards are those of torch", "[mesh]") {
  // The example of torch's own documentation: 9 rows, split 2, 4 ranks.
  const std::vector<std::vector<uint64_t>> expected = {{0, 1, 5}, {2, 3, 6}, {4, 7}, {8}};
  const auto nine = HoldingsOf(TwoAxes(4, 1), {StridedShard(0, 2), Replicate()}, {9});
  REQUIRE(nine.ok());
  for (uint32_t rank = 0; rank < 4; ++rank) REQUIRE(RowsOf(*nine, rank) == expected[rank]);

  for (uint64_t rows = 1; rows <= 23; ++rows) {
    for (uint32_t split = 1; split <= 5; ++split) {
      const std::vector<Placement> placements{StridedShard(0, split), Shard(0)};
      const auto holdings = HoldingsOf(TwoAxes(3, 2), placements, {rows, 1});
      REQUIRE(holdings.ok());
      std::vector<uint64_t> all(rows);
      for (uint64_t i = 0; i < rows; ++i) all[i] = i;
      for (uint32_t rank = 0; rank < 6; ++rank) {
        const auto dp = naive::TorchShard(all, placements[0], 3, rank / 2);
        REQUIRE(RowsOf(*holdings, rank) == naive::TorchShard(dp, placements[1], 2, rank % 2));
      }
    }
  }
}

TEST_CASE("only owners hold a tensor, and trailing chunks may be empty", "[mesh]") {
  const auto holdings = HoldingsOf(TwoAxes(2, 4), {Owner({1}), Shard(0)}, {5});
  REQUIRE(holdings.ok());
  REQUIRE(holdings->size() == 3);  // chunks of 2, 2, 1 and none
  REQUIRE(RowsOf(*holdings, 4) == std::vector<uint64_t>{0, 1});
  REQUIRE(RowsOf(*holdings, 6) == std::vector<uint64_t>{4});
  REQUIRE(RowsOf(*holdings, 7).empty());
  REQUIRE(RowsOf(*holdings, 0).empty());
}

TEST_CASE("meshes and placements that do not fit are refused by name", "[mesh]") {
  REQUIRE(Validate(TwoAxes(2, 2), 4).ok());
  RequireRefused(Validate(TwoAxes(2, 2), 3), "rank 3");
  Mesh mesh = TwoAxes(2, 2);
  mesh.ranks[3] = 0;
  RequireRefused(Validate(mesh, 4), "rank 0");
  mesh.ranks.pop_back();
  RequireRefused(Validate(mesh, 4), "room for 4");
  mesh = TwoAxes(0, 1);
  RequireRefused(Validate(mesh, 4), "'dp'");
  RequireRefused(HoldingsOf(TwoAxes(2, 2), {Shard(0)}, {4}).status(), "2 axes");
  RequireRefused(HoldingsOf(TwoAxes(2, 2), {Shard(0), Shard(1)}, {4}).status(), "'tp'");
  RequireRefused(HoldingsOf(TwoAxes(2, 2), {Owner({2}), Shard(0)}, {4}).status(), "'dp'");
  RequireRefused(HoldingsOf(TwoAxes(2, 2), {StridedShard(0, 0), Shard(0)}, {4}).status(), "split");
  RequireRefused(HoldingsOf({{.rank = 3, .begin = 2, .end = 5}}, {4}).status(), "rank 3");
}

TEST_CASE("placements with too many boxes are refused before memory is taken for them", "[mesh]") {
  // Each rank has every second index of each dimension: 1024 ranges, so 2^40 boxes.
  Mesh mesh;
  std::vector<Placement> placements;
  for (uint32_t dim = 0; dim < 4; ++dim) {
    mesh.axes.push_back({.name = "axis", .size = 2});
    placements.push_back(StridedShard(dim, 1024));
  }
  for (uint32_t rank = 0; rank < 16; ++rank) mesh.ranks.push_back(rank);
  const Status status = HoldingsOf(mesh, placements, {2048, 2048, 2048, 2048}).status();
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace dws::mesh
