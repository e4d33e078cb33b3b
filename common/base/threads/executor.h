// Runs posted tasks on its own threads, in order of posting. With one thread it is serial.
// Used where a gRPC reaction must not block.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/base/threads/pulse.h"

namespace dws {

// Lifecycle: the destructor calls Stop. Threads: safe from any.
class Executor {
 public:
  Executor(size_t thread_count, size_t queue_max);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False when the queue is full or the executor is stopping; the task is then dropped.
  [[nodiscard]] bool Post(std::function<void()> task);

  // Refuses new tasks, drops tasks that have not started, and waits for those that run. A second
  // call does nothing.
  void Stop();

  // Reports work while a task runs.
  const Pulse& pulse() const { return pulse_; }

 private:
  void Run();

  const size_t queue_max_;
  Pulse pulse_;
  Mutex mutex_;
  CondVar posted_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace dws
