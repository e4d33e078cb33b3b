// A thread that does the same piece of work again and again: a poll, a keepalive, a report.
//
//   LoopThread loop([this] { Poll(); return limits::kTick; });
//   loop.Start();
//   loop.Wake();  // Poll soon, not only at the next tick
//   loop.Stop();
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Lifecycle: Start, then Stop or the destructor. Declare it after all members that its rounds use.
// Threads: Wake and stopping from any, also from a round; the others one at a time.
class LoopThread {
 public:
  // Does one round of work. Returns how long to wait for the next one.
  using Round = std::function<Duration()>;

  explicit LoopThread(Round round);
  ~LoopThread();

  // The first round begins after `wait`.
  void Start(Duration wait = Duration::zero());
  // Ends the wait before the next round, also one that has not begun yet.
  void Wake();
  // Starts no further round and waits for the round that is running. A second call does nothing.
  void Stop();
  // Tells a long round to end early.
  bool stopping() const { return stopping_.load(); }
  // It was started and not stopped.
  bool started() const { return thread_.joinable(); }

 private:
  void Run(Duration wait);

  const Round round_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace dws
