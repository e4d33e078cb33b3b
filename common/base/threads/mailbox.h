// A queue from threads that have something to do to threads that do it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any. Messages are destroyed without the lock: their destructors may be foreign
// code.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t count_max) : count_max_(count_max) {}

  // False: it is full or closed; the message is dropped.
  [[nodiscard]] bool Put(T message) {
    MutexLock lock(mutex_);
    if (closed_ || messages_.size() >= count_max_) return false;
    messages_.push_back(std::move(message));
    changed_.NotifyOne();
    return true;
  }
  // Waits for a message, and takes the oldest. nullopt: it is closed.
  std::optional<T> Take() {
    MutexLock lock(mutex_);
    while (!closed_ && messages_.empty()) changed_.Wait(mutex_);
    if (closed_) return std::nullopt;
    std::optional<T> message(std::move(messages_.front()));
    messages_.pop_front();
    return message;
  }
  // Never waits.
  std::deque<T> TakeAll() {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }
  // Drops what was not taken, and ends all waits.
  void Close() {
    std::deque<T> dropped;
    MutexLock lock(mutex_);
    closed_ = true;
    dropped.swap(messages_);
    changed_.NotifyAll();
  }

 private:
  const size_t count_max_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::deque<T> messages_ GUARDED_BY(mutex_);
};

}  // namespace dws
