// For "did you mean": finds the known name closest to a mistyped one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dws {

// The number of insertions, removals, substitutions and swaps of neighbours that turn one string
// into the other (Damerau-Levenshtein distance, "optimal string alignment" variant).
size_t EditDistance(std::string_view from, std::string_view to);

// The nearest of `names`, the first one if several are equally near. nullopt when none is near,
// that is when more than a third of the letters would have to change.
std::optional<std::string> ClosestName(std::string_view name,
                                       const std::vector<std::string>& names);

}  // namespace dws
