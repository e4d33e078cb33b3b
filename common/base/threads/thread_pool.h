// A fixed set of threads for data-parallel loops over blocks. Not a task queue: nothing outlives
// the call that started it.
//
//   pool.ParallelFor(block_count,
//                    [&](size_t index, size_t worker) { Encode(index, scratch[worker]); });
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <type_traits>
#include <vector>

#include "common/base/threads/liveness.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Lifecycle: the constructor starts the threads and the destructor joins them; no loop may be
// running then. Threads: ParallelFor from any thread, several at a time; the pool's threads then
// serve the loops in the order in which they began. A loop's body may start another loop on the
// same pool, but should not expect it to be faster.
class ThreadPool {
 public:
  // `thread_count` threads in addition to the callers; with 0 every loop is sequential.
  explicit ThreadPool(size_t thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The most workers that one loop has, its caller included: `worker` is below this.
  size_t worker_count() const { return threads_.size() + 1; }

  // Beats with every call of a loop's body.
  const Liveness& liveness() const { return liveness_; }

  // Calls fn(index, worker) once for each index in [0, count), in no particular order; the caller's
  // thread takes part. Returns when all calls have returned; the caller then sees what they wrote.
  // Calls of one loop that run at the same time have different `worker` numbers. Allocates nothing.
  // fn does not throw.
  template <typename Fn>
  void ParallelFor(size_t count, Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    Loop loop;
    loop.body = [](void* body, size_t index, size_t worker) {
      (*static_cast<Body*>(body))(index, worker);
    };
    loop.context = const_cast<std::remove_const_t<Body>*>(&fn);
    loop.count = count;
    Run(loop);
  }

 private:
  // Lives on its caller's stack; in the list while it may have unclaimed indexes.
  struct Loop {
    void (*body)(void* context, size_t index, size_t worker) = nullptr;
    void* context = nullptr;
    size_t count = 0;
    std::atomic<size_t> next_index{0};
    size_t joined = 0;     // workers that joined so far: the next one's number. Guarded by mutex_
    size_t running = 0;    // workers inside the loop. Guarded by mutex_
    Loop* next = nullptr;  // guarded by mutex_
  };

  void Run(Loop& loop);
  void ThreadMain();
  void Work(Loop& loop, size_t worker);
  void Unlink(Loop& loop) REQUIRES(mutex_);

  Liveness liveness_;
  Mutex mutex_;
  CondVar work_available_;
  CondVar loop_finished_;
  Loop* first_ GUARDED_BY(mutex_) = nullptr;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace dws
