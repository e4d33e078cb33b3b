#include "common/base/threads/thread_pool.h"

#include "common/base/check.h"

namespace dws {

// A loop is on its caller's stack, so no thread may touch it after the caller saw running == 0:
//   1. a pool thread joins a loop only under the mutex, while the loop is in the list
//   2. a thread that finds all its indexes claimed takes it out of the list, under the mutex
//   3. the caller returns when the loop is out of the list and no thread is inside
ThreadPool::ThreadPool(size_t thread_count) {
  threads_.reserve(thread_count);
  for (size_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { ThreadMain(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    DWS_CHECK(first_ == nullptr);
    stopping_ = true;
  }
  work_available_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Work(Loop& loop, size_t worker) {
  while (true) {
    const size_t index = loop.next_index.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop.count) return;
    loop.body(loop.context, index, worker);
    liveness_.Beat();
  }
}

void ThreadPool::Run(Loop& loop) {
  if (loop.count == 0) return;
  if (threads_.empty() || loop.count == 1) return Work(loop, 0);

  loop.joined = 1;  // the caller is worker 0
  {
    MutexLock lock(mutex_);
    Loop** end = &first_;
    while (*end != nullptr) end = &(*end)->next;
    *end = &loop;
  }
  work_available_.NotifyAll();
  Work(loop, 0);

  MutexLock lock(mutex_);
  Unlink(loop);
  while (loop.running > 0) loop_finished_.Wait(mutex_);
}

void ThreadPool::Unlink(Loop& loop) {
  for (Loop** at = &first_; *at != nullptr; at = &(*at)->next) {
    if (*at == &loop) {
      *at = loop.next;
      return;
    }
  }
}

void ThreadPool::ThreadMain() {
  mutex_.Lock();
  while (true) {
    while (first_ == nullptr && !stopping_) work_available_.Wait(mutex_);
    if (first_ == nullptr) break;
    Loop& loop = *first_;
    const size_t worker = loop.joined++;
    ++loop.running;
    mutex_.Unlock();
    Work(loop, worker);
    mutex_.Lock();
    // All indexes are claimed: a thread that joined this loop now would find no work, and its
    // worker number could be too high.
    Unlink(loop);
    if (--loop.running == 0) loop_finished_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace dws
