#include "common/base/threads/liveness.h"

#include <algorithm>

namespace dws {

std::optional<std::string> LivenessWatch::Stuck(TimePoint now) {
  const Duration gap = std::min<Duration>(now - last_.value_or(now), kGapMax);
  last_ = now;
  std::optional<std::string> stuck;
  for (Entry& entry : entries_) {
    // Beats of helpers are progress of the work that waits for them.
    uint64_t beats = entry.work.work->beats();
    for (const Liveness* helper : entry.work.helpers) beats += helper->beats();
    if (beats != entry.beats || !entry.work.work->working()) {
      entry.beats = beats;
      entry.still = Duration::zero();
      continue;
    }
    entry.still += gap;
    if (entry.still > stall_max_ && !stuck.has_value()) stuck = entry.work.name;
  }
  return stuck;
}

}  // namespace dws
