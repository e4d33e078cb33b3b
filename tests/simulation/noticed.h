// What the tests of both simulations say: no seed shows a violation, and a broken rule is noticed.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/options.h"

namespace dws::sim {

// The first seed with a violation, and its message; 0: none.
struct Found {
  uint64_t seed = 0;
  std::string violation;
};
template <typename World>
Found FirstViolation(Mutation mutation, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    World world({.seed = seed, .mutation = mutation});
    const std::string violation = world.Run();
    if (!violation.empty()) return {.seed = seed, .violation = violation};
  }
  return {};
}

// A broken rule is noticed within so many seeds, by one of these violations; which of them a seed
// meets first is left to chance.
template <typename World>
void ExpectNoticedBy(Mutation mutation, uint64_t seeds,
                     const std::vector<std::string>& violations) {
  const Found found = FirstViolation<World>(mutation, seeds);
  INFO("seed " << found.seed << ": " << found.violation);
  CHECK(found.seed > 0);
  CHECK(std::ranges::any_of(violations, [&found](const std::string& violation) {
    return found.violation.find(violation) != std::string::npos;
  }));
}

}  // namespace dws::sim
