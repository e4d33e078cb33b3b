// "Did you mean": the known name that a mistyped one is closest to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dws {

// Insertions, removals, substitutions and swaps of neighbours that turn one into the other
// (Damerau and Levenshtein's distance, in its "optimal string alignment" form).
size_t EditDistance(std::string_view from, std::string_view to);

// The nearest of `names`, the first of equals; nullopt when none is near: more than a third of the
// name's letters would have to change.
std::optional<std::string> ClosestName(std::string_view name,
                                       const std::vector<std::string>& names);

}  // namespace dws
