// One lock: an exchange ends on its own thread, while the executor waits for it.
#include "sender_daemon/views/awaited_amax.h"

#include <algorithm>
#include <iterator>

namespace dws {

void AwaitedAmax::Begin(const std::string& name) {
  MutexLock lock(mutex_);
  behind_.try_emplace(name, Behind{.since = clock_.Now(), .untold = OkStatus()})
      .first->second.untold = OkStatus();
}

void AwaitedAmax::NoteUntold(const std::string& name, const Status& why) {
  MutexLock lock(mutex_);
  const auto found = behind_.find(name);
  if (found != behind_.end()) found->second.untold = why;
}

Status AwaitedAmax::WhyUntold(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = behind_.find(name);
  return found == behind_.end() ? OkStatus() : found->second.untold;
}

std::optional<std::pair<std::string, Duration>> AwaitedAmax::LongestBehind(
    Duration least, const std::set<std::string>& missed) const {
  std::optional<std::pair<std::string, Duration>> longest;
  MutexLock lock(mutex_);
  for (const auto& [name, behind] : behind_) {
    const Duration lasts = clock_.Now() - behind.since;
    if (lasts <= least || !missed.contains(name)) continue;
    least = lasts;
    longest = {name, lasts};
  }
  return longest;
}

bool AwaitedAmax::Arrive(const std::string& name, const View& view, WeightVersion version,
                         MatrixAmax::Others others) {
  {
    MutexLock lock(mutex_);
    Arrived& known = arrived_[name];
    if (known.view.lock() == view && known.version > version) return false;
    known = {.view = view, .version = version, .others = std::move(others)};
  }
  arrival_.NotifyAll();
  return true;
}

bool AwaitedAmax::HasCome(const std::string& name, const View& view, WeightVersion version) const {
  const auto found = arrived_.find(name);
  return found != arrived_.end() && found->second.view.lock() == view &&
         found->second.version == version;
}

void AwaitedAmax::WaitUntil(TimePoint until, const std::string& name, const View& view,
                            WeightVersion version) {
  MutexLock lock(mutex_);
  while (clock_.Now() < until && !HasCome(name, view, version)) {
    arrival_.WaitFor(mutex_, until - clock_.Now());
  }
}

std::optional<MatrixAmax::Others> AwaitedAmax::Take(const std::string& name, const View& view,
                                                    WeightVersion version) {
  MutexLock lock(mutex_);
  if (!HasCome(name, view, version)) return std::nullopt;
  MatrixAmax::Others others = std::move(arrived_[name].others);
  arrived_.erase(name);
  behind_.erase(name);
  return others;
}

void AwaitedAmax::Keep(std::vector<UntoldAmax> untold) {
  MutexLock lock(mutex_);
  std::ranges::move(untold, std::back_inserter(untold_));
}

std::vector<UntoldAmax> AwaitedAmax::Recorded(WeightVersion version) {
  std::vector<UntoldAmax> untold;
  MutexLock lock(mutex_);
  std::erase_if(untold_, [&](UntoldAmax& one) {
    if (one.version == version) untold.push_back(std::move(one));
    return one.version <= version;
  });
  return untold;
}

void AwaitedAmax::Drop(const std::string& name, const View& view) {
  MutexLock lock(mutex_);
  behind_.erase(name);
  arrived_.erase(name);
  std::erase_if(untold_, [&](const UntoldAmax& one) { return one.view == view; });
}

void AwaitedAmax::Clear() {
  MutexLock lock(mutex_);
  untold_.clear();
  arrived_.clear();
  behind_.clear();
}

}  // namespace dws
