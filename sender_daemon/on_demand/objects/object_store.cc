// After each change all waits are looked through: there are few, one for each rank or two.
#include "sender_daemon/on_demand/objects/object_store.h"

#include <algorithm>
#include <utility>

namespace dws {

std::string ToString(const RankObjectKey& key) {
  return fmt::format("'{}' of group {}", key.name, key.group);
}

ObjectStore::Attached ObjectStore::Attach(const std::string& process) {
  Attached attached;
  {
    MutexLock lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) {
      if (entry.first.group < group_) return false;
      bytes_ -= entry.second->bytes.size();
      return true;
    });
    attached_ = ++last_process_;
    process_ = process;
    attached = {.process = attached_, .group = group_};
  }
  Tell();
  return attached;
}

void ObjectStore::Detach(uint64_t process) {
  {
    MutexLock lock(mutex_);
    if (process != attached_) return;
    attached_ = 0;
    std::erase_if(objects_, [&](const auto& entry) {
      if (entry.first.group < group_) return false;
      bytes_ -= entry.second->bytes.size();
      return true;
    });
  }
  Tell();
}

Status ObjectStore::CheckProcess(uint64_t process) const {
  if (process != 0 && process == attached_) return OkStatus();
  return FailedPreconditionError(
      "this process of rank {} has to attach: another one has taken its place, or this sender has "
      "started again",
      options_.rank.value());
}

Status ObjectStore::CheckKey(uint64_t process, const RankObjectKey& key) const {
  DWS_RETURN_IF_ERROR(CheckProcess(process));
  if (key.group >= group_) return OkStatus();
  return AbortedError("{} is over: rank {} is in group {}", ToString(key), options_.rank.value(),
                      group_);
}

Status ObjectStore::Reserve(uint64_t process, const RankObjectKey& key, uint64_t size_bytes) {
  if (key.name.empty() || key.name.size() > limits::kObjectNameBytesMax) {
    return InvalidArgumentError("an object's name has {} bytes, expected 1 to {}", key.name.size(),
                                limits::kObjectNameBytesMax);
  }
  MutexLock lock(mutex_);
  DWS_RETURN_IF_ERROR(CheckKey(process, key));
  if (objects_.size() >= limits::kObjectsMax) {
    return ResourceExhaustedError("rank {} has put {} objects, more are not supported",
                                  options_.rank.value(), objects_.size());
  }
  if (size_bytes > options_.bytes_max - std::min(options_.bytes_max, bytes_)) {
    return ResourceExhaustedError(
        "{} has {} bytes, and rank {} has put {} before: expected at most {} in all, raise "
        "--object-bytes",
        ToString(key), size_bytes, options_.rank.value(), bytes_, options_.bytes_max);
  }
  bytes_ += size_bytes;
  return OkStatus();
}

void ObjectStore::Release(uint64_t size_bytes) {
  MutexLock lock(mutex_);
  bytes_ -= size_bytes;
}

Status ObjectStore::Put(uint64_t process, const RankObjectKey& key, RankObjectPtr object) {
  {
    MutexLock lock(mutex_);
    const uint64_t size = object->bytes.size();
    Status status = CheckKey(process, key);
    const auto before = objects_.find(key);
    const bool is_new = status.ok() && before == objects_.end();
    if (!is_new) bytes_ -= size;
    if (status.ok() && !is_new && before->second->bytes != object->bytes) {
      status = AlreadyExistsError("other bytes were put as {} before", ToString(key));
    }
    if (!is_new) return status;
    objects_.emplace(key, std::move(object));
  }
  Tell();
  return OkStatus();
}

Status ObjectStore::Advance(uint64_t process, uint64_t group, const std::vector<std::string>& kept,
                            const std::string& reason) {
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(CheckProcess(process));
    if (group <= group_) {
      return InvalidArgumentError("rank {} is in group {}, expected a later one, found {}",
                                  options_.rank.value(), group_, group);
    }
    std::erase_if(objects_, [&](const auto& entry) {
      const auto& [key, object] = entry;
      if (key.group == group_ && std::ranges::find(kept, key.name) != kept.end()) return false;
      if (key.group >= group) return false;
      bytes_ -= object->bytes.size();
      return true;
    });
    group_ = group;
    reason_ = reason;
  }
  Tell();
  return OkStatus();
}

bool ObjectStore::Answered(const Wanted& wanted, Answer& answer) const {
  const uint32_t rank = options_.rank.value();
  const auto found = objects_.find(wanted.key);
  if (stopping_) {
    answer.status = UnavailableError("the sender of rank {} is shutting down", rank);
  } else if (found != objects_.end() && found->second->bytes.size() > wanted.size_bytes_max) {
    answer.status = MakeStatus(
        absl::StatusCode::kOutOfRange,
        fmt::format("{} of rank {} has {} bytes, expected at most {}", ToString(wanted.key), rank,
                    found->second->bytes.size(), wanted.size_bytes_max));
  } else if (found != objects_.end()) {
    answer.object = found->second;
  } else if (wanted.key.group < group_) {
    answer.group = group_;
    answer.status = AbortedError("rank {} ({}) has gone on to group {}: {}", rank, process_, group_,
                                 reason_.empty() ? "it does not say why" : reason_);
  } else if (attached_ == 0 && !wanted.patient) {
    answer.status = process_.empty() ? UnavailableError("no process of rank {} has attached", rank)
                                     : UnavailableError("rank {} ({}) is gone", rank, process_);
  } else {
    return false;
  }
  return true;
}

uint64_t ObjectStore::Fetch(const Wanted& wanted, Done done) {
  Answer answer;
  {
    MutexLock lock(mutex_);
    bool known = Answered(wanted, answer);
    if (!known && waiters_.size() >= limits::kObjectWaitersMax) {
      answer.status = ResourceExhaustedError("{} calls wait for objects of rank {}",
                                             waiters_.size(), options_.rank.value());
      known = true;
    }
    if (!known) {
      waiters_.emplace(++last_waiter_, Waiter{.wanted = wanted, .done = std::move(done)});
      return last_waiter_;
    }
  }
  done(answer);
  return 0;
}

void ObjectStore::Forget(uint64_t waiter) {
  MutexLock lock(mutex_);
  waiters_.erase(waiter);
}

void ObjectStore::Tell() {
  std::vector<std::pair<Done, Answer>> answered;
  {
    MutexLock lock(mutex_);
    std::erase_if(waiters_, [&](auto& entry) {
      Answer answer;
      if (!Answered(entry.second.wanted, answer)) return false;
      answered.emplace_back(std::move(entry.second.done), std::move(answer));
      return true;
    });
  }
  for (const auto& [done, answer] : answered) done(answer);
}

void ObjectStore::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Tell();
}

}  // namespace dws
