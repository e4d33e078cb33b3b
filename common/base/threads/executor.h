// Runs posted tasks on its own threads, in order of posting. With one thread it is serial.
// Used where a gRPC reaction must not block.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/threads/liveness.h"
#include "common/base/threads/mailbox.h"

namespace dws {

// Lifecycle: the destructor calls Stop. Threads: safe from any.
class Executor {
 public:
  Executor(size_t thread_count, size_t queue_max);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False when the queue is full or the executor is stopping; the task is then dropped.
  [[nodiscard]] bool Post(std::function<void()> task) { return tasks_.Put(std::move(task)); }

  // Refuses new tasks, drops tasks that have not started, and waits for those that run. A second
  // call does nothing.
  void Stop();

  // Reports work while a task runs.
  const Liveness& liveness() const { return liveness_; }

 private:
  void Run();

  Liveness liveness_;
  Mailbox<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

}  // namespace dws
