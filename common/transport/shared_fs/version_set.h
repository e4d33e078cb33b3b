// The versions of one stream that a shared directory has, and how one gets from version to version
// with them. Pure: manifests only, no files.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/transport/shared_fs/manifest.h"

namespace dws::shared {

// The way to a version: the full tensors of `anchor`, and the deltas from there.
struct FullPath {
  ManifestPtr anchor;
  std::vector<ManifestPtr> deltas;  // ascending, each the base of the next
};

// Threads: one at a time.
class VersionSet {
 public:
  // If several epochs published a version, the highest epoch's is used.
  void Put(ManifestPtr manifest);
  void Remove(VersionName name);

  ManifestPtr Find(WeightVersion version) const;  // null: there is no such version
  ManifestPtr Newest() const;                     // null: empty
  ManifestPtr NewestAnchor() const;               // null: there is none
  const std::map<VersionName, ManifestPtr>& all() const { return versions_; }

  // Returns the deltas from `base` to `target`. ABORTED: one of them is missing, or there are more
  // than limits::kSharedChainMax.
  Result<std::vector<ManifestPtr>> Chain(WeightVersion base, WeightVersion target) const;
  // Returns the way to `target` from the newest anchor that leads there. FAILED_PRECONDITION: only
  // a version with digests, but without full tensors, leads there. ABORTED: nothing leads there.
  Result<FullPath> FromAnchor(WeightVersion target) const;
  // Returns the newest `count_max` versions, ascending, that can be reached from an anchor or from
  // a version with digests only. Leaves out versions above the newest one of the highest epoch: its
  // sender does not know them.
  std::vector<WeightVersion> Reachable(size_t count_max) const;
  VersionName NewestOfNewestEpoch() const;  // version 0 when empty

 private:
  std::map<VersionName, ManifestPtr> versions_;
};

}  // namespace dws::shared
