// Callers are called without the lock, because they answer their calls then. The code that takes an
// entry out of the map finishes it, so each entry is finished once.
#include "receiver_daemon/engine/commit_boundary.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "common/sync_state/presence_limits.h"

namespace dws {

Status CommitBoundary::Begin(uint64_t id, bool stays, Ended ended, const void* owner) {
  bool over = false;
  {
    MutexLock lock(mutex_);
    if (closed_.has_value()) return *closed_;
    if (open_.contains(id)) {
      return MakeStatus(absl::StatusCode::kAlreadyExists,
                        fmt::format("boundary {} is open already: each needs its own id", id));
    }
    if (open_.size() >= limits::kBoundariesOpenMax) {
      return ResourceExhaustedError("{} boundaries are open already: end them first",
                                    limits::kBoundariesOpenMax);
    }
    over = !held_ && !stays;
    if (!over) {
      open_.emplace(
          id, Entry{.stays = stays, .over = false, .ended = std::move(ended), .owner = owner});
    }
  }
  if (over) {
    ended(OkStatus());
  } else {
    changed_.Notify();
  }
  return OkStatus();
}

void CommitBoundary::End(uint64_t id, Ended ended) {
  std::vector<Ended> calls;
  Status status;
  {
    MutexLock lock(mutex_);
    const auto found = open_.find(id);
    if (committing_) {
      if (found != open_.end()) found->second.over = true;
      if (waiting_.size() < limits::kBoundariesOpenMax) {
        waiting_.push_back(std::move(ended));
      } else {
        calls.push_back(std::move(ended));
        status = ResourceExhaustedError(
            "{} calls wait already for the commit that is under way: end each boundary once",
            limits::kBoundariesOpenMax);
      }
    } else {
      if (found != open_.end()) {
        calls.push_back(std::move(found->second.ended));
        open_.erase(found);
      }
      calls.push_back(std::move(ended));
    }
  }
  Finish(calls, status);
}

bool CommitBoundary::Drop(uint64_t id, const void* owner) {
  MutexLock lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end() || found->second.owner != owner) return false;
  open_.erase(found);
  return true;
}

uint64_t CommitBoundary::NewId() {
  MutexLock lock(mutex_);
  return ++last_own_id_;
}

bool CommitBoundary::Hold() {
  MutexLock lock(mutex_);
  held_ = true;
  committing_ = committing_ || std::any_of(open_.begin(), open_.end(),
                                           [](const auto& entry) { return !entry.second.over; });
  return committing_;
}

void CommitBoundary::Settle() {
  std::vector<Ended> calls;
  {
    MutexLock lock(mutex_);
    held_ = committing_ = false;
    for (auto& [id, entry] : open_) {
      if (!entry.stays || entry.over) calls.push_back(std::move(entry.ended));
    }
    std::erase_if(open_,
                  [](const auto& entry) { return !entry.second.stays || entry.second.over; });
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(calls));
    waiting_.clear();
  }
  Finish(calls, OkStatus());
}

void CommitBoundary::Close(const Status& reason) {
  DWS_CHECK(!reason.ok());
  std::vector<Ended> calls;
  {
    MutexLock lock(mutex_);
    closed_ = reason;
    held_ = committing_ = false;
    for (auto& [id, entry] : open_) calls.push_back(std::move(entry.ended));
    open_.clear();
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(calls));
    waiting_.clear();
  }
  Finish(calls, reason);
}

void CommitBoundary::Finish(const std::vector<Ended>& calls, const Status& status) {
  for (const Ended& ended : calls) ended(status);
}

}  // namespace dws
