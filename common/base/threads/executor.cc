// Tasks run without the lock: they may post other tasks, and Post does not wait for a long task.
#include "common/base/threads/executor.h"

namespace dws {

Executor::Executor(size_t thread_count, size_t queue_max) : tasks_(queue_max) {
  for (size_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() { Stop(); }

void Executor::Stop() {
  tasks_.Close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run() {
  while (const auto task = tasks_.Take()) {
    const WorkScope work(&liveness_);
    (*task)();
  }
}

}  // namespace dws
