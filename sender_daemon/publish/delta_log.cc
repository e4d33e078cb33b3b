// Receivers that fell behind together ask for the same delta, so composed ones are kept for a
// while.
#include "sender_daemon/publish/delta_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/delta/squash.h"
#include "common/model/limits.h"

namespace dws {

DeltaLog::DeltaLog(RankLayout layout, DeltaLogLimits limits)
    : layout_(std::move(layout)), chain_(limits.bytes_max, limits.versions_max) {}

void DeltaLog::Append(RetainedVersionPtr version) {
  MutexLock lock(mutex_);
  size_t gone = chain_.Append(version->version, version->base, version->retained_bytes());
  versions_.push_back(std::move(version));
  ++appends_;
  DWS_CHECK(gone < versions_.size());  // the newest stays
  if (gone > 0) complete_ = false;
  for (; gone > 0; --gone) versions_.pop_front();
  DWS_CHECK(versions_.size() == chain_.size());
  appended_.NotifyAll();
}

RetainedVersionPtr DeltaLog::Newest() const {
  MutexLock lock(mutex_);
  return versions_.empty() ? nullptr : versions_.back();
}

RetainedVersionPtr DeltaLog::First() const {
  MutexLock lock(mutex_);
  return versions_.empty() || !complete_ ? nullptr : versions_.front();
}

RetainedVersionPtr DeltaLog::Find(WeightVersion version) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(versions_.begin(), versions_.end(),
                                  [&](const auto& entry) { return entry->version == version; });
  return found == versions_.end() ? nullptr : *found;
}

std::vector<RetainedVersionPtr> DeltaLog::All() const {
  MutexLock lock(mutex_);
  return {versions_.begin(), versions_.end()};
}

uint64_t DeltaLog::retained_bytes() const {
  MutexLock lock(mutex_);
  return chain_.bytes();
}

Result<std::vector<RetainedVersionPtr>> DeltaLog::Chain(WeightVersion base,
                                                        WeightVersion target) const {
  MutexLock lock(mutex_);
  DWS_ASSIGN_OR_RETURN(const RetainedChain::Range range, chain_.Lead(base, target));
  DWS_CHECK(range.count > 0 && range.first < versions_.size() &&
            range.count <= versions_.size() - range.first);
  const auto first = versions_.begin() + static_cast<ptrdiff_t>(range.first);
  std::vector<RetainedVersionPtr> chain(first, first + static_cast<ptrdiff_t>(range.count));
  DWS_CHECK(chain.front()->base == base && chain.back()->version == target);
  return chain;
}

bool DeltaLog::HasFull(WeightVersion base, WeightVersion target) const {
  MutexLock lock(mutex_);
  return std::ranges::any_of(versions_, [&](const RetainedVersionPtr& entry) {
    return entry->version > base && entry->version <= target && !entry->base.has_value();
  });
}

Status DeltaLog::WaitFor(WeightVersion version, Duration timeout) const {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (versions_.empty() || versions_.back()->version < version) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      return DeadlineExceededError("version {} was captured but not sealed within {:.1f} s",
                                   version.value(), ToSeconds(timeout));
    }
    appended_.WaitFor(mutex_, left);
  }
  return OkStatus();
}

Result<ObjectPtr> DeltaLog::Object(WeightVersion base, WeightVersion target, DeltaProfile profile) {
  DWS_ASSIGN_OR_RETURN(const auto chain, Chain(base, target));
  Note(profile);
  if (chain.size() == 1) {  // shares the version's ownership
    const RetainedVersionPtr& version = chain.front();
    return ObjectPtr(version, &version->object_of(profile));
  }
  {
    MutexLock lock(mutex_);
    for (const Composed& composed : composed_) {
      if (composed.base == base && composed.target == target) return composed.object;
    }
  }
  DWS_ASSIGN_OR_RETURN(auto bytes, Squash(layout_, chain));
  auto object = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  MutexLock lock(mutex_);
  composed_.push_back({.base = base, .target = target, .object = object});
  if (composed_.size() > limits::kComposedCacheMax) composed_.pop_front();
  return object;
}

Result<std::vector<std::byte>> Squash(const RankLayout& layout,
                                      const std::vector<RetainedVersionPtr>& chain) {
  std::vector<DeltaLink> links;
  for (const RetainedVersionPtr& version : chain) links.push_back(version->link());
  return Squash(layout, links);
}

bool DeltaLog::IsRecent(const AskedAt& asked) const {
  return asked.has_value() && appends_ - *asked <= limits::kWanAskedVersions;
}

DeltaProfile DeltaLog::Asked() const {
  MutexLock lock(mutex_);
  if (IsRecent(AskedOf(DeltaProfile::kWan))) return DeltaProfile::kWan;
  return IsRecent(AskedOf(DeltaProfile::kDirect)) ? DeltaProfile::kDirect : DeltaProfile::kFast;
}

bool DeltaLog::AllDirect() const {
  // Receivers ask for the same version one after the other, and one may lag behind.
  constexpr uint64_t kVersionsApart = 2;
  MutexLock lock(mutex_);
  const AskedAt& direct = AskedOf(DeltaProfile::kDirect);
  const AskedAt& fast = AskedOf(DeltaProfile::kFast);
  if (!IsRecent(direct) || IsRecent(AskedOf(DeltaProfile::kWan))) return false;
  return !fast.has_value() || *fast + kVersionsApart <= *direct;
}

void DeltaLog::Note(DeltaProfile profile) {
  MutexLock lock(mutex_);
  AskedOf(profile) = appends_;
}

}  // namespace dws
