// Random meshes, placements, rules and dtypes: every plan, executed on bytes, gives each rank what
// it needs and writes every byte once.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/common/mesh/random_layout.h"

namespace dws::mesh {
namespace {

constexpr int kRounds = 3000;

// DWS_MESH_ROUNDS asks for more.
int Rounds() {
  const char* rounds = std::getenv("DWS_MESH_ROUNDS");
  return rounds == nullptr ? kRounds : std::atoi(rounds);
}

PlanOptions MakeOptions(samples::Random& random) {
  constexpr SharePolicy kPolicies[] = {SharePolicy::kShares, SharePolicy::kLeastLoaded,
                                       SharePolicy::kRoundRobin, SharePolicy::kBroadcast};
  return {.policy = kPolicies[random.Below(4)],
          .once_per_host = random.Chance(0.5),
          .share_bytes_min = 1 + random.Below(64)};
}

}  // namespace

TEST_CASE("a plan moves every byte between random meshes to its place once", "[mesh]") {
  const uint64_t seed = samples::TestSeed();
  for (int round = 0; round < Rounds(); ++round) {
    samples::Random random(seed + static_cast<uint64_t>(round));
    const naive::RandomCatalogue catalogue = naive::MakeCatalogue(random);
    const naive::RandomLayout source = naive::MakeLayout(random, catalogue);
    const naive::RandomLayout destination = naive::MakeLayout(random, catalogue);
    const Result<Plan> plan =
        MakePlan(catalogue.catalogue, source.layout, destination.layout, MakeOptions(random));
    INFO("DWS_TEST_SEED=" << seed + static_cast<uint64_t>(round) << " in round 0");
    INFO(plan.status().ToString());
    REQUIRE(plan.ok());
    REQUIRE(naive::Execute(*plan, source.layout, source.arrays, destination.layout,
                           destination.arrays) == "");
    REQUIRE_FALSE(plan->IsStale(source.layout.generations, destination.layout.generations));
  }
}

TEST_CASE("a plan without the last of a tensor's holders is refused by range", "[mesh]") {
  const uint64_t seed = samples::TestSeed();
  for (int round = 0; round < 300; ++round) {
    samples::Random random(seed + static_cast<uint64_t>(round));
    const naive::RandomCatalogue catalogue = naive::MakeCatalogue(random);
    naive::RandomLayout source = naive::MakeLayout(random, catalogue);
    const naive::RandomLayout destination = naive::MakeLayout(random, catalogue);
    // Takes one canonical tensor from the source.
    const auto lost = static_cast<uint32_t>(random.Below(catalogue.catalogue.size()));
    for (MeshTensor& tensor : source.layout.tensors) {
      std::erase_if(tensor.content.pieces, [&](const Piece& piece) {
        if (piece.canonical != lost) return false;
        tensor.content.padding += Volume(piece.own);
        return true;
      });
    }
    const Status status =
        MakePlan(catalogue.catalogue, source.layout, destination.layout, MakeOptions(random))
            .status();
    INFO("seed " << seed + static_cast<uint64_t>(round) << ": " << status.ToString());
    REQUIRE(status.code() == absl::StatusCode::kFailedPrecondition);
    REQUIRE(Message(status).find("'" + catalogue.catalogue[lost].name + "'") !=
            std::string_view::npos);
    REQUIRE(Message(status).find("rank ") != std::string_view::npos);
    REQUIRE(Message(status).find("[") != std::string_view::npos);
  }
}

}  // namespace dws::mesh
