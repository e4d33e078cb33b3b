#include "sender_daemon/delta_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/model/limits.h"

namespace dws {

DeltaLog::DeltaLog(RankLayout layout, DeltaLogLimits limits)
    : layout_(std::move(layout)), limits_(limits) {}

void DeltaLog::Append(RetainedVersionPtr version) {
  MutexLock lock(mutex_);
  bytes_ += version->retained_bytes();
  versions_.push_back(std::move(version));
  while (versions_.size() > 1 &&
         (bytes_ > limits_.bytes_max || versions_.size() > limits_.versions_max)) {
    bytes_ -= versions_.front()->retained_bytes();
    versions_.pop_front();
  }
  appended_.NotifyAll();
}

RetainedVersionPtr DeltaLog::Newest() const {
  MutexLock lock(mutex_);
  return versions_.empty() ? nullptr : versions_.back();
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
  return bytes_;
}

Result<std::vector<RetainedVersionPtr>> DeltaLog::Chain(WeightVersion base,
                                                        WeightVersion target) const {
  MutexLock lock(mutex_);
  std::vector<RetainedVersionPtr> chain;
  for (const RetainedVersionPtr& entry : versions_) {
    if (entry->version > base && entry->version <= target) chain.push_back(entry);
  }
  WeightVersion at = base;
  for (const RetainedVersionPtr& entry : chain) {
    if (!entry->base.has_value() || *entry->base != at) break;
    at = entry->version;
  }
  if (at != target || chain.empty()) {
    return AbortedError(
        "no delta leads from version {} to {}: the log retains {} to {}; take full tensors",
        base.value(), target.value(), versions_.empty() ? 0 : versions_.front()->version.value(),
        versions_.empty() ? 0 : versions_.back()->version.value());
  }
  return chain;
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
  if (profile == DeltaProfile::kWan) {
    MutexLock lock(mutex_);
    if (!wan_asked_.has_value() || *wan_asked_ < target) wan_asked_ = target;
  }
  if (chain.size() == 1) {  // shares the version's ownership
    const RetainedVersionPtr& version = chain.front();
    const bool split = profile == DeltaProfile::kWan && !version->split_object.empty();
    return ObjectPtr(version, split ? &version->split_object : &version->object);
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

bool DeltaLog::WanAsked() const {
  MutexLock lock(mutex_);
  return wan_asked_.has_value() && !versions_.empty() &&
         versions_.back()->version.value() - wan_asked_->value() <= limits::kWanAskedVersions;
}

}  // namespace dws
