// After each change all waits are looked through: there are few, one for each rank or two.
#include "sender_daemon/on_demand/objects/object_store.h"

#include <algorithm>
#include <utility>

namespace dws {

std::string ToString(const RankObjectKey& key) {
  return fmt::format("'{}' number {}", key.name, key.number);
}

uint64_t ObjectStore::Attach(const std::string& process) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    objects_.clear();
    first_ = 0;
    last_put_.reset();
    number = attached_ = ++last_process_;
    process_ = process;
  }
  Tell();
  return number;
}

void ObjectStore::Detach(uint64_t process) {
  {
    MutexLock lock(mutex_);
    if (process != attached_) return;
    attached_ = 0;
    objects_.clear();
  }
  Tell();
}

Status ObjectStore::CheckKey(uint64_t process, const RankObjectKey& key) const {
  if (process == 0 || process != attached_) {
    return FailedPreconditionError(
        "this process of rank {} has to attach: another one has taken its place, or this sender "
        "has started again",
        options_.rank.value());
  }
  const auto found = objects_.find(key.name);
  const bool later = found != objects_.end() && found->second->number > key.number;
  if (key.number >= first_ && !later) return OkStatus();
  return AbortedError("{} is over: rank {} has gone on to number {}", ToString(key),
                      options_.rank.value(), later ? found->second->number : first_);
}

Status ObjectStore::CheckRoom(const RankObjectKey& key, uint64_t size_bytes) const {
  if (objects_.size() >= limits::kObjectsMax) {
    return ResourceExhaustedError("rank {} has put {} objects, more are not supported",
                                  options_.rank.value(), objects_.size());
  }
  const uint64_t held = *held_bytes_;
  if (size_bytes <= options_.bytes_max - std::min(options_.bytes_max, held)) return OkStatus();
  return ResourceExhaustedError(
      "{} has {} bytes, and rank {} has {} in other objects: expected at most {} in all, raise "
      "--object-bytes",
      ToString(key), size_bytes, options_.rank.value(), held, options_.bytes_max);
}

Result<std::unique_ptr<const ObjectRoom>> ObjectStore::Reserve(
    uint64_t process, const RankObjectKey& key, uint64_t size_bytes,
    const std::optional<std::string>& over_because) {
  if (key.name.empty() || key.name.size() > limits::kObjectNameBytesMax) {
    return InvalidArgumentError("an object's name has {} bytes, expected 1 to {}", key.name.size(),
                                limits::kObjectNameBytesMax);
  }
  std::unique_ptr<const ObjectRoom> room;
  Status fits;
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(CheckKey(process, key));
    if (over_because.has_value()) {
      std::erase_if(objects_, [&](const auto& entry) { return entry.second->number < key.number; });
      first_ = key.number;
      reason_ = over_because->substr(0, limits::kObjectReasonBytesMax);
    }
    fits = CheckRoom(key, size_bytes);
    if (fits.ok()) {
      *held_bytes_ += size_bytes;
      room = std::make_unique<const ObjectRoom>(held_bytes_, size_bytes);
    }
  }
  Tell();  // also if there is no room: lower numbers are over
  DWS_RETURN_IF_ERROR(fits);
  return room;
}

Status ObjectStore::Put(const std::string& name, RankObjectPtr object) {
  {
    MutexLock lock(mutex_);
    const RankObjectKey key{.name = name, .number = object->number};
    DWS_RETURN_IF_ERROR(CheckKey(object->process, key));
    last_put_ = {.key = key, .rounds = object->rounds, .at = object->put_at};
    RankObjectPtr& place = objects_[name];
    if (place != nullptr && place->number == object->number) {
      if (place->bytes == object->bytes) return OkStatus();
      return AlreadyExistsError("other bytes were put as {} before", ToString(key));
    }
    place = std::move(object);
  }
  Tell();
  return OkStatus();
}

void ObjectStore::Remove(uint64_t process, const std::string& name) {
  MutexLock lock(mutex_);
  if (process == attached_) objects_.erase(name);
}

std::optional<ObjectStore::Answer> ObjectStore::AnswerTo(const Wanted& wanted) const {
  const uint32_t rank = options_.rank.value();
  if (stopping_) return Answer{UnavailableError("the sender of rank {} is shutting down", rank)};
  if (attached_ == 0) {
    return Answer{process_.empty() ? UnavailableError("no process of rank {} has attached", rank)
                                   : UnavailableError("rank {} ({}) is gone", rank, process_)};
  }
  const bool same = wanted.process == attached_;
  if (!same && !wanted.newer) {
    return Answer{
        UnavailableError("another process of rank {} ({}) has taken the place of the one "
                         "that was asked",
                         rank, process_)};
  }
  const auto found = objects_.find(wanted.key.name);
  const RankObjectPtr object = found == objects_.end() ? nullptr : found->second;
  const uint64_t number = object == nullptr ? 0 : object->number;
  const bool fits = object != nullptr && (wanted.newer ? !same || number > wanted.key.number
                                                       : number == wanted.key.number);
  if (fits && object->bytes.size() > wanted.size_bytes_max) {
    return Answer{MakeStatus(
        absl::StatusCode::kOutOfRange,
        fmt::format("{} of rank {} has {} bytes, expected at most {}", ToString(wanted.key), rank,
                    object->bytes.size(), wanted.size_bytes_max))};
  }
  if (fits) return Answer{.status = OkStatus(), .object = object};
  if (wanted.newer || (number <= wanted.key.number && wanted.key.number >= first_)) {
    return std::nullopt;
  }
  return Answer{AbortedError("rank {} ({}) has gone on to number {}: {}", rank, process_,
                             std::max(number, first_),
                             reason_.empty() ? "it does not say why" : reason_)};
}

uint64_t ObjectStore::Fetch(const Wanted& wanted, Done done) {
  std::optional<Answer> answer;
  {
    MutexLock lock(mutex_);
    if (wanted.key.name.size() > limits::kObjectNameBytesMax) {
      answer = Answer{InvalidArgumentError("an object's name has {} bytes, expected at most {}",
                                           wanted.key.name.size(), limits::kObjectNameBytesMax)};
    } else {
      answer = AnswerTo(wanted);
    }
    if (!answer.has_value() && waiters_.size() >= limits::kObjectWaitersMax) {
      answer = Answer{ResourceExhaustedError("{} calls wait for objects of rank {}",
                                             waiters_.size(), options_.rank.value())};
    }
    if (!answer.has_value()) {
      waiters_.emplace(++last_waiter_, Waiter{.wanted = wanted, .done = std::move(done)});
      return last_waiter_;
    }
  }
  done(*answer);
  return 0;
}

bool ObjectStore::Forget(uint64_t waiter) {
  MutexLock lock(mutex_);
  return waiters_.erase(waiter) != 0;
}

ObjectStore::Counts ObjectStore::counts() const {
  MutexLock lock(mutex_);
  return {.attached = attached_ != 0,
          .objects = objects_.size(),
          .held_bytes = *held_bytes_,
          .waits = waiters_.size(),
          .last = last_put_};
}

void ObjectStore::Tell() {
  std::vector<std::pair<Done, Answer>> answered;
  {
    MutexLock lock(mutex_);
    std::erase_if(waiters_, [&](auto& entry) {
      std::optional<Answer> answer = AnswerTo(entry.second.wanted);
      if (!answer.has_value()) return false;
      answered.emplace_back(std::move(entry.second.done), *std::move(answer));
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
