// Tasks run without the lock: they may post other tasks, and Post does not wait for a long task.
#include "common/base/threads/executor.h"

#include <utility>

namespace dws {

Executor::Executor(size_t thread_count, size_t queue_max) : queue_max_(queue_max) {
  for (size_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() { Stop(); }

bool Executor::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (stopping_ || tasks_.size() >= queue_max_) return false;
  tasks_.push_back(std::move(task));
  posted_.NotifyOne();
  return true;
}

void Executor::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);  // a task's destructor is foreign code: it runs outside the lock
    posted_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && tasks_.empty()) posted_.Wait(mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const PulseWork work(&pulse_);
    task();
  }
}

}  // namespace dws
