#include "common/train_state/combining.h"

#include <catch2/catch.hpp>
#include <set>

namespace dws {
namespace {

using Hosts = std::vector<std::optional<SenderHost>>;

SenderHost On(const std::string& id, bool combines = true) {
  return {.id = id, .combines = combines};
}

std::vector<TrainerRank> Ranks(const std::vector<uint32_t>& numbers) {
  std::vector<TrainerRank> ranks;
  for (const uint32_t number : numbers) ranks.emplace_back(number);
  return ranks;
}

}  // namespace

TEST_CASE("the combiners of a host take the owners of other hosts in turn", "[train]") {
  const Hosts hosts = {On("a"), On("a", false), On("a"), On("b"), On("b"), On("c")};
  CHECK(CombiningOf(TrainerRank(0), hosts).owners == Ranks({3, 5}));
  CHECK(CombiningOf(TrainerRank(1), hosts).owners.empty());
  CHECK(CombiningOf(TrainerRank(2), hosts).owners == Ranks({4}));
  CHECK(CombiningOf(TrainerRank(2), hosts).ranks == Ranks({0, 1, 2}));
  CHECK(CombiningOf(TrainerRank(4), hosts).owners == Ranks({1, 5}));
}

TEST_CASE("every owner elsewhere has one combiner on a host with any", "[train]") {
  for (uint32_t combines = 1; combines < 8; ++combines) {
    Hosts hosts;
    for (uint32_t r = 0; r < 9; ++r) {
      hosts.push_back(On(std::to_string(r / 3), (combines >> r % 3) % 2 == 1));
    }
    std::multiset<uint32_t> owners;
    for (uint32_t r = 3; r < 6; ++r) {
      for (const TrainerRank owner : CombiningOf(TrainerRank(r), hosts).owners) {
        owners.insert(owner.value());
      }
    }
    CHECK(owners == std::multiset<uint32_t>{0, 1, 2, 6, 7, 8});
  }
}

TEST_CASE("nobody combines on one host, without room, or before all hosts are known", "[train]") {
  CHECK(CombiningOf(TrainerRank(0), {On("a"), On("a")}).owners.empty());
  CHECK(CombiningOf(TrainerRank(0), {On("a", false), On("b")}).owners.empty());
  CHECK(CombiningOf(TrainerRank(0), {On("a"), On("b"), std::nullopt}).owners.empty());
}

}  // namespace dws
