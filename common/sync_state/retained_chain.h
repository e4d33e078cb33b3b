// Keeps account of the published versions that a sender still has, under a cap of bytes and of
// versions, and finds those that lead from one version to another. It has numbers only:
// sender_daemon/publish/delta_log.h keeps the objects.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

// Threads: one at a time.
class RetainedChain {
 public:
  RetainedChain(uint64_t bytes_max, size_t versions_max)
      : bytes_max_(bytes_max), versions_max_(versions_max) {}

  // Adds a version above all others (CHECK). Returns how many of the oldest are dropped, so that no
  // limit is exceeded; the newest always stays.
  size_t Append(WeightVersion version, std::optional<WeightVersion> base, uint64_t bytes);

  // Indexes among the retained, oldest 0.
  struct Range {
    size_t first = 0;
    size_t count = 0;
  };
  // Returns the versions (base, target], each the base of the next. ABORTED: one of them is not
  // retained, or has no delta.
  Result<Range> Lead(WeightVersion base, WeightVersion target) const;

  uint64_t bytes() const { return bytes_; }
  size_t size() const { return versions_.size(); }

 private:
  struct Entry {
    WeightVersion version;
    std::optional<WeightVersion> base;
    uint64_t bytes = 0;
  };
  uint64_t bytes_max_;
  size_t versions_max_;
  std::deque<Entry> versions_;
  uint64_t bytes_ = 0;
};

}  // namespace dws
