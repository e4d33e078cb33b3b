#include "common/sync_state/retained_chain.h"

#include "common/base/check.h"

namespace dws {

size_t RetainedChain::Append(WeightVersion version, std::optional<WeightVersion> base,
                             uint64_t bytes) {
  DWS_CHECK(versions_.empty() || versions_.back().version < version);
  versions_.push_back({.version = version, .base = base, .bytes = bytes});
  bytes_ += bytes;
  size_t gone = 0;
  // The newest version always stays, even if it alone is larger than the limit.
  while (versions_.size() > 1 && (bytes_ > bytes_max_ || versions_.size() > versions_max_)) {
    bytes_ -= versions_.front().bytes;
    versions_.pop_front();
    ++gone;
  }
  return gone;
}

Result<RetainedChain::Range> RetainedChain::Lead(WeightVersion base, WeightVersion target) const {
  if (versions_.empty()) {
    return AbortedError("version {} is not in the log, which is empty", target.value());
  }
  if (target > versions_.back().version) {
    return AbortedError("version {} is not in the log, which retains {} to {}", target.value(),
                        versions_.front().version.value(), versions_.back().version.value());
  }
  Range range;
  WeightVersion at = base;
  for (size_t i = 0; i < versions_.size(); ++i) {
    const Entry& entry = versions_[i];
    if (entry.version <= base || entry.version > target) continue;
    if (!entry.base.has_value()) {
      return AbortedError("no delta leads to version {}, it has full tensors only: take those",
                          entry.version.value());
    }
    if (entry.base != at) break;
    if (range.count++ == 0) range.first = i;
    at = entry.version;
  }
  if (at == target && range.count > 0) return range;
  return AbortedError(
      "no delta leads from version {} to {}: the log retains {} to {}; take full tensors",
      base.value(), target.value(), versions_.front().version.value(),
      versions_.back().version.value());
}

}  // namespace dws
