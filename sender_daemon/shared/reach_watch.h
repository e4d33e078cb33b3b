// Finds out that folders or manifests of published versions were removed from a shared directory,
// or damaged, by somebody else, so that receivers cannot reach the newest version any longer. Other
// files are the receivers' to check.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/version_catalog.h"

namespace dws {

// Lifecycle: until the next version with full tensors. Threads: one at a time.
class ReachWatch {
 public:
  static constexpr Duration kInterval = std::chrono::minutes(1);
  static constexpr Duration kAgain = std::chrono::seconds(10);  // if something is missing

  // Once in kInterval, first so long after the first call, reads again what leads to `newest`.
  // Calls `on_read` after each manifest. Errors as VersionCatalog::Refresh; UNAVAILABLE: the place
  // does not answer for one of them. The next call looks again then.
  Status Look(
      shared::VersionCatalog& catalog, WeightVersion newest, TimePoint now,
      const std::function<void()>& on_read = [] {});

  // Why receivers cannot reach it, if two looks, kAgain apart, have found that: a place may show
  // files late.
  const Status& cut_off() const { return cut_off_; }

 private:
  std::optional<TimePoint> look_at_;
  bool found_ = false;  // by the last look
  Status cut_off_;
};

}  // namespace dws
