// The slices that the engine ranks of one receiver hold. A commit group uses it to check that its
// receivers together hold everything.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace dws {

// Both by tensor in the order of names, then slice; of equal sizes.
struct EngineShare {
  std::vector<bool> held;
  std::vector<bool> excluded;  // its tensor is left out on purpose

  friend bool operator==(const EngineShare&, const EngineShare&) = default;
};

// The first slice that none of `shares` (at least one, each of one receiver) holds and not all
// exclude; with different layouts, at the latest the first slice that not all know. nullopt: they
// hold everything.
std::optional<size_t> FirstUnheld(std::span<const EngineShare* const> shares);

}  // namespace dws
