#include "common/sync_state/engine_share.h"

#include <algorithm>

#include "common/base/check.h"

namespace dws {

std::optional<size_t> FirstUnheld(std::span<const EngineShare* const> shares) {
  DWS_CHECK(!shares.empty());
  size_t least = shares.front()->held.size();
  size_t most = least;
  for (const EngineShare* share : shares) {
    DWS_CHECK(share->held.size() == share->excluded.size());
    least = std::min(least, share->held.size());
    most = std::max(most, share->held.size());
  }
  for (size_t s = 0; s < least; ++s) {
    const auto holds = [s](const EngineShare* share) { return share->held[s]; };
    const auto excludes = [s](const EngineShare* share) { return share->excluded[s]; };
    if (std::none_of(shares.begin(), shares.end(), holds) &&
        !std::all_of(shares.begin(), shares.end(), excludes)) {
      return s;
    }
  }
  // Members that know layouts of different sizes cannot cover each other's last slices.
  if (least != most) return least;
  return std::nullopt;
}

}  // namespace dws
