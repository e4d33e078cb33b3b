// Ranks of one host follow each other in most jobs, so taking owners in turn gives each combiner
// about as many.
#include "common/train_state/combining.h"

#include <algorithm>

namespace dws {

Combining CombiningOf(TrainerRank self, const std::vector<std::optional<SenderHost>>& hosts) {
  const auto known = [](const std::optional<SenderHost>& host) { return host.has_value(); };
  if (!std::all_of(hosts.begin(), hosts.end(), known)) return {};
  Combining combining;
  std::vector<TrainerRank> combiners;
  for (uint32_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r]->id != hosts[self.value()]->id) continue;
    combining.ranks.emplace_back(r);
    if (hosts[r]->combines) combiners.emplace_back(r);
  }
  if (combiners.empty()) return {};
  size_t turn = 0;
  for (uint32_t o = 0; o < hosts.size(); ++o) {
    if (hosts[o]->id == hosts[self.value()]->id) continue;
    if (combiners[turn++ % combiners.size()] == self) combining.owners.emplace_back(o);
  }
  return combining;
}

}  // namespace dws
