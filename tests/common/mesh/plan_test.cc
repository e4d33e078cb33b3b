// What a plan refuses and by which names, when it is stale, and how policies divide bytes.
#include "common/mesh/plan.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "common/mesh/traffic.h"

namespace dws::mesh {
namespace {

Mesh Line(uint32_t ranks) {
  Mesh mesh{.axes = {{.name = "tp", .size = ranks}}, .ranks = {}};
  for (uint32_t rank = 0; rank < ranks; ++rank) mesh.ranks.push_back(rank);
  return mesh;
}

MeshLayout Layout(uint32_t ranks, const FusedTensor& content, const Placement& placement) {
  return {.rank_count = ranks,
          .meshes = {Line(ranks)},
          .tensors = {{.name = "own", .content = content, .mesh = 0, .placements = {placement}}}};
}

const Catalogue kCatalogue{{.name = "w", .dtype = DType::kBF16, .shape = {1024, 256}},
                           {.name = "u", .dtype = DType::kF32, .shape = {6}}};
const std::vector<uint64_t> kShape = kCatalogue[0].shape;

Status PlanStatus(const MeshLayout& source, const MeshLayout& destination) {
  return MakePlan(kCatalogue, source, destination, {}).status();
}

void RequireRefused(const Status& status, std::vector<std::string_view> words) {
  INFO(status.ToString());
  REQUIRE_FALSE(status.ok());
  for (const std::string_view word : words) {
    INFO(word);
    REQUIRE(Message(status).find(word) != std::string_view::npos);
  }
}

std::vector<uint64_t> SentBytes(const Plan& plan, uint32_t ranks) {
  std::vector<uint64_t> sent(ranks, 0);
  for (const Region& region : plan.regions) {
    if (region.hop == Hop::kNetwork) sent[region.source] += plan.BytesOf(region);
  }
  return sent;
}

}  // namespace

TEST_CASE("what no source rank holds is named by tensor, rank and range", "[mesh]") {
  MeshLayout source = Layout(4, Whole(0, kShape), Shard(0));
  const MeshLayout destination = Layout(2, Whole(0, kShape), Shard(1));
  REQUIRE(PlanStatus(source, destination).ok());
  source.tensors[0].flat = {{.rank = 0, .begin = 0, .end = 256 * 10},
                            {.rank = 1, .begin = 256 * 12, .end = 256 * 1024}};
  RequireRefused(PlanStatus(source, destination), {"'own'", "rank 0", "[10:12, 0:128]", "'w'"});
  source.tensors[0].flat[0].end = 256 * 12;
  REQUIRE(PlanStatus(source, destination).ok());
}

TEST_CASE("layouts that are not valid are refused by side, tensor and range", "[mesh]") {
  const MeshLayout good = Layout(2, Whole(0, kShape), Shard(0));
  MeshLayout bad = good;
  bad.tensors[0].dtype = DType::kF16;
  RequireRefused(PlanStatus(bad, good), {"source", "'own'", "F16", "BF16"});
  bad = good;
  bad.tensors[0].content = Whole(0, {1024, 257});
  RequireRefused(PlanStatus(good, bad), {"destination", "'own'", "257", "'w'"});
  bad = good;
  bad.tensors[0].content.pieces.push_back(bad.tensors[0].content.pieces[0]);
  bad.tensors[0].content.pieces[1].own.box = {.lo = {7}, .extent = {1, 256, 1, 1}};
  RequireRefused(PlanStatus(good, bad), {"destination", "'own'", "two pieces", "[7:8, 0:256]"});
  bad = good;
  bad.tensors[0].content.pieces[0].own.box.extent[0] = 1000;
  RequireRefused(PlanStatus(good, bad), {"'own'", "hole", "[1000:1024, 0:256]"});
  bad = good;
  bad.tensors[0].content.pieces[0].canonical = 2;
  RequireRefused(PlanStatus(bad, good), {"'own'", "canonical tensor 2"});
  bad = good;
  bad.tensors[0].content.pieces[0].own.box.lo[0] = ~uint64_t{0} - 5;
  RequireRefused(PlanStatus(bad, good), {"'own'"});
  bad = good;
  bad.tensors[0].content.pieces[0].axis[1] = 0;
  RequireRefused(PlanStatus(bad, good), {"'own'"});
  bad = good;
  bad.tensors[0].flat = {{.rank = 1, .begin = 0, .end = 4}, {.rank = 1, .begin = 2, .end = 8}};
  RequireRefused(PlanStatus(bad, good), {"'own'", "2 to 8", "rank 1"});
  bad = good;
  bad.tensors[0].mesh = 1;
  RequireRefused(PlanStatus(bad, good), {"'own'", "mesh 1"});
  bad = good;
  bad.tensors[0].content.shape = {1, 1, 1, 1, 1};
  RequireRefused(PlanStatus(bad, good), {"'own'", "5 dimensions"});
  bad = good;
  bad.generations = {1};
  RequireRefused(PlanStatus(bad, good), {"source", "it has 2"});
}

TEST_CASE("layouts that would need too much memory are refused before it is taken", "[mesh]") {
  const auto requires_word = [](const Status& status, std::string_view word) {
    INFO(status.ToString());
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(Message(status).find(word) != std::string_view::npos);
  };
  // Two pieces of 2^35 blocks, whose steps differ.
  const uint64_t rows = uint64_t{1} << 40;
  const Catalogue tall{{.name = "w", .dtype = DType::kU8, .shape = {rows}}};
  MeshLayout striped = Layout(1, Whole(0, {rows}), Replicate());
  striped.tensors[0].dtype = DType::kU8;
  for (const uint64_t step : {2, 4}) {
    Piece& piece = striped.tensors[0].content.pieces.emplace_back();
    piece.own = {.box = {}, .count = rows / 32, .step = step};
    piece.step = 1;
  }
  striped.tensors[0].content.pieces.erase(striped.tensors[0].content.pieces.begin());
  requires_word(MakePlan(tall, striped, striped, {}).status(), "34359738368 blocks");
  // 65,536 rows of 4096 columns, each of which is on a rank of its own.
  const Catalogue wide{{.name = "w", .dtype = DType::kU8, .shape = {65'536, 4096}}};
  MeshLayout cut = Layout(4096, Whole(0, wide[0].shape), Shard(1));
  cut.tensors[0].dtype = DType::kU8;
  Piece row = cut.tensors[0].content.pieces[0];
  row.own.box.extent[0] = 1;
  cut.tensors[0].content.pieces.clear();
  for (row.lo[0] = 0; row.lo[0] < 65'536; ++row.lo[0]) {
    row.own.box.lo[0] = row.lo[0];
    cut.tensors[0].content.pieces.push_back(row);
  }
  requires_word(MakePlan(wide, cut, cut, {}).status(), "'own'");
  // The same pieces whole on every rank: 2^28 senders.
  cut.tensors[0].placements = {Replicate()};
  MeshLayout whole = Layout(1, Whole(0, wide[0].shape), Replicate());
  whole.tensors[0].dtype = DType::kU8;
  requires_word(MakePlan(wide, cut, whole, {}).status(), "senders");
  // 1100 tensors of different shapes on 4096 ranks each.
  Catalogue many;
  MeshLayout replicas = Layout(4096, Whole(0, {1}), Replicate());
  replicas.tensors.clear();
  for (uint32_t t = 0; t < 1100; ++t) {
    many.push_back({.name = "w", .dtype = DType::kU8, .shape = {t + 1}});
    replicas.tensors.push_back({.name = fmt::format("own{}", t),
                                .dtype = DType::kU8,
                                .content = Whole(t, many[t].shape),
                                .placements = {Replicate()}});
  }
  requires_word(MakePlan(many, replicas, replicas, {}).status(), "'own1023'");
}

TEST_CASE("a plan ends at the most regions that it may have", "[mesh]") {
  const MeshLayout source = Layout(64, Whole(0, kShape), Shard(0));
  const MeshLayout destination = Layout(64, Whole(0, kShape), Replicate());
  REQUIRE(MakePlan(kCatalogue, source, destination, {.regions_max = 64 * 64}).ok());
  const Status status =
      MakePlan(kCatalogue, source, destination, {.regions_max = 64 * 64 - 1}).status();
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
  RequireRefused(status, {"4095 regions", "'w'"});
}

TEST_CASE("a plan is stale as soon as one rank has registered again", "[mesh]") {
  MeshLayout source = Layout(2, Whole(0, kShape), Shard(0));
  MeshLayout destination = source;
  source.generations = {3, 4};
  destination.generations = {5, 6};
  const Result<Plan> plan = MakePlan(kCatalogue, source, destination, {});
  REQUIRE(plan.ok());
  REQUIRE_FALSE(plan->IsStale(source.generations, destination.generations));
  for (size_t rank : {0, 1}) {
    ++source.generations[rank];
    REQUIRE(plan->IsStale(source.generations, destination.generations));
    --source.generations[rank];
    ++destination.generations[rank];
    REQUIRE(plan->IsStale(source.generations, destination.generations));
    --destination.generations[rank];
  }
  REQUIRE(plan->IsStale({}, destination.generations));
  // The digest is of layouts, not of registrations.
  ++source.generations[0];
  REQUIRE(MakePlan(kCatalogue, source, destination, {})->digest == plan->digest);
  source.tensors[0].placements[0] = Shard(1);
  REQUIRE_FALSE(MakePlan(kCatalogue, source, destination, {})->digest == plan->digest);
}

TEST_CASE("replicas share a tensor to the row, and other policies do not", "[mesh]") {
  const MeshLayout source = Layout(4, Whole(0, kShape), Replicate());
  const MeshLayout destination = Layout(2, Whole(0, kShape), Shard(0));
  const uint64_t bytes = kCatalogue[0].SizeBytes();
  PlanOptions options{.share_bytes_min = 1024};
  REQUIRE(SentBytes(*MakePlan(kCatalogue, source, destination, options), 4) ==
          std::vector<uint64_t>(4, bytes / 4));
  options.policy = SharePolicy::kLeastLoaded;
  REQUIRE(SentBytes(*MakePlan(kCatalogue, source, destination, options), 4) ==
          std::vector<uint64_t>{bytes, 0, 0, 0});
  options.policy = SharePolicy::kRoundRobin;
  REQUIRE(SentBytes(*MakePlan(kCatalogue, source, destination, options), 4) ==
          std::vector<uint64_t>{bytes / 2, bytes / 2, 0, 0});
}

TEST_CASE("by round robin every replica sends the same to engines of several ranks", "[mesh]") {
  // 4 replicas of 8 tensor-parallel ranks, 4 engines of 8.
  const auto mesh = [] {
    Mesh made{.axes = {{.name = "dp", .size = 4}, {.name = "tp", .size = 8}}, .ranks = {}};
    for (uint32_t rank = 0; rank < 32; ++rank) made.ranks.push_back(rank);
    return made;
  };
  const MeshLayout layout{.rank_count = 32,
                          .meshes = {mesh()},
                          .tensors = {{.name = "own",
                                       .content = Whole(0, kShape),
                                       .mesh = 0,
                                       .placements = {Replicate(), Shard(0)}}}};
  const Result<Plan> plan =
      MakePlan(kCatalogue, layout, layout, {.policy = SharePolicy::kRoundRobin});
  REQUIRE(plan.ok());
  REQUIRE(SentBytes(*plan, 32) == std::vector<uint64_t>(32, kCatalogue[0].SizeBytes() / 8));
}

TEST_CASE("what no destination rank is to hold is refused or named", "[mesh]") {
  const MeshLayout source = Layout(2, Whole(0, kShape), Shard(0));
  MeshLayout destination = source;
  const Result<Plan> plan = MakePlan(kCatalogue, source, destination, {});
  REQUIRE(plan.ok());
  REQUIRE(plan->not_wanted == std::vector<uint32_t>{1});  // 'u'
  destination.tensors[0].flat = {{.rank = 1, .begin = 12, .end = 256 * 1024},
                                 {.rank = 0, .begin = 0, .end = 10}};
  RequireRefused(PlanStatus(source, destination), {"destination", "'own'", "element 10"});
  destination.tensors[0].flat[1].end = 12;
  REQUIRE(PlanStatus(source, destination).ok());
  destination = source;
  destination.tensors[0].placements = {Owner({})};
  RequireRefused(PlanStatus(source, destination), {"destination", "'own'", "no owner"});
  // The first row twice, the last never: nothing of the destination is missing, of 'w' it is.
  destination = source;
  destination.tensors[0].content = Concat(0, {Row(0, kShape, 0), Row(0, kShape, 0)});
  REQUIRE(MakePlan(kCatalogue, source, destination, {})->not_wanted == std::vector<uint32_t>{0, 1});
}

TEST_CASE("parts with padding are interleaved block by block", "[mesh]") {
  const FusedTensor padded = Pad(Whole(0, {6, 4}), 0, 8);
  const FusedTensor mixed = Interleave(0, 2, {padded, Whole(1, {8, 4})});
  REQUIRE(mixed.shape == std::vector<uint64_t>{16, 4});
  uint64_t elements = 0;
  for (const Piece& piece : mixed.pieces) elements += Volume(piece.own);
  REQUIRE(elements == (6 + 8) * 4);
  REQUIRE(mixed.padding == 2 * 4);
  const Catalogue catalogue{{.name = "a", .dtype = DType::kU8, .shape = {6, 4}},
                            {.name = "b", .dtype = DType::kU8, .shape = {8, 4}}};
  MeshLayout layout = Layout(1, mixed, Replicate());
  layout.tensors[0].dtype = DType::kU8;
  REQUIRE(Validate(catalogue, layout).ok());
}

TEST_CASE("ranks of a host take what they share once", "[mesh]") {
  const MeshLayout source = Layout(2, Whole(0, kShape), Shard(0));
  MeshLayout destination = Layout(4, Whole(0, kShape), Replicate());
  destination.hosts = {0, 0, 1, 1};
  const uint64_t bytes = kCatalogue[0].SizeBytes();
  const Result<Plan> plan = MakePlan(kCatalogue, source, destination, {.once_per_host = true});
  REQUIRE(plan.ok());
  REQUIRE(SentBytes(*plan, 2) == std::vector<uint64_t>(2, bytes));
  uint64_t in_host = 0;
  for (const Region& region : plan->regions) {
    if (region.hop != Hop::kHost) continue;
    REQUIRE(destination.hosts[region.source] == destination.hosts[region.destination]);
    in_host += plan->BytesOf(region);
  }
  REQUIRE(in_host == 2 * bytes);
  REQUIRE(plan->covered_bytes == 4 * bytes);
}

TEST_CASE("a broadcast once per host goes to one rank of each, which the others copy", "[mesh]") {
  const MeshLayout source = Layout(2, Whole(0, kShape), Shard(0));
  MeshLayout destination = Layout(5, Whole(0, kShape), Shard(0));
  destination.hosts = {0, 0, 1, 0, 1};
  const uint64_t bytes = kCatalogue[0].SizeBytes();
  PlanOptions options{.policy = SharePolicy::kBroadcast};
  Traffic traffic = TrafficOf(*MakePlan(kCatalogue, source, destination, options), 2, 5);
  REQUIRE(traffic.received == std::vector<uint64_t>(5, bytes));
  REQUIRE(traffic.host_bytes == 0);
  options.once_per_host = true;
  traffic = TrafficOf(*MakePlan(kCatalogue, source, destination, options), 2, 5);
  REQUIRE(traffic.received == std::vector<uint64_t>{bytes, 0, bytes, 0, 0});
  REQUIRE(traffic.sent == std::vector<uint64_t>{2 * bytes, bytes / 2});
  REQUIRE(traffic.pairs[2] == bytes);
  REQUIRE(traffic.host_bytes == 3 * bytes);
  destination.hosts.clear();  // every rank is alone
  traffic = TrafficOf(*MakePlan(kCatalogue, source, destination, options), 2, 5);
  REQUIRE(traffic.received == std::vector<uint64_t>(5, bytes));
}

}  // namespace dws::mesh
