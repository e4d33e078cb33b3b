// Any file may be missing or of a replaced sender, so each chain is followed version by version.
#include "common/transport/shared_fs/version_set.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/model/limits.h"

namespace dws::shared {

void VersionSet::Put(ManifestPtr manifest) {
  const VersionName name = manifest->name;
  versions_[name] = std::move(manifest);
}

void VersionSet::Remove(VersionName name) { versions_.erase(name); }

ManifestPtr VersionSet::Find(WeightVersion version) const {
  const auto after = versions_.upper_bound({.version = version, .epoch = RankEpoch(UINT64_MAX)});
  if (after == versions_.begin()) return nullptr;
  const auto found = std::prev(after);
  return found->first.version == version ? found->second : nullptr;
}

ManifestPtr VersionSet::Newest() const {
  return versions_.empty() ? nullptr : versions_.rbegin()->second;
}

ManifestPtr VersionSet::NewestAnchor() const {
  for (auto at = versions_.rbegin(); at != versions_.rend(); ++at) {
    if (at->second->is_anchor()) return at->second;
  }
  return nullptr;
}

Result<std::vector<ManifestPtr>> VersionSet::Chain(WeightVersion base, WeightVersion target) const {
  std::vector<ManifestPtr> chain;
  WeightVersion at = target;
  while (at > base) {
    const ManifestPtr version = Find(at);
    if (version == nullptr || !version->has_delta() || chain.size() == limits::kSharedChainMax) {
      return AbortedError(
          "the deltas {} -> {} are not all available: version {} {}", base.value(), target.value(),
          at.value(),
          version == nullptr ? "does not exist" : "has no delta that continues the chain");
    }
    at = *version->base;  // smaller, as its manifest was checked
    chain.push_back(version);
  }
  if (at != base || chain.empty()) {
    return AbortedError("no deltas lead from version {} to {}: they begin at version {}",
                        base.value(), target.value(), at.value());
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

Result<FullPath> VersionSet::FromAnchor(WeightVersion target) const {
  FullPath path;
  WeightVersion at = target;
  while (path.deltas.size() <= limits::kSharedChainMax) {
    const ManifestPtr version = Find(at);
    if (version == nullptr) break;
    if (version->is_anchor()) {
      path.anchor = version;
      std::reverse(path.deltas.begin(), path.deltas.end());
      return path;
    }
    if (version->is_base()) {
      return FailedPreconditionError(
          "there are digests only of version {}, from which one gets to version {}", at.value(),
          target.value());
    }
    at = *version->base;
    path.deltas.push_back(version);
  }
  return AbortedError("version {} cannot be reached: version {} is not available", target.value(),
                      at.value());
}

VersionName VersionSet::NewestOfNewestEpoch() const {
  VersionName newest;
  for (const auto& [name, manifest] : versions_) {  // ascending
    if (name.epoch >= newest.epoch) newest = name;
  }
  return newest;
}

std::vector<WeightVersion> VersionSet::Reachable(size_t count_max) const {
  const WeightVersion newest = NewestOfNewestEpoch().version;
  std::set<WeightVersion> reached;  // bases are smaller, so they come first
  for (const auto& [name, manifest] : versions_) {
    if (Find(name.version) != manifest) continue;  // the other epoch's is used
    if (name.version > newest) break;              // of a sender that has been replaced
    const bool begins = manifest->is_anchor() || manifest->is_base();
    if (begins || reached.contains(*manifest->base)) reached.insert(name.version);
  }
  std::vector<WeightVersion> versions(reached.begin(), reached.end());
  if (versions.size() > count_max)
    versions.erase(versions.begin(), versions.end() - static_cast<ptrdiff_t>(count_max));
  return versions;
}

}  // namespace dws::shared
