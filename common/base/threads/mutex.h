// std::mutex with clang's thread annotations. absl::Mutex is not used: Debian's build is not
// instrumented and drowns ThreadSanitizer.
#pragma once

// Abseil 20220623 defines the unprefixed GUARDED_BY and NO_THREAD_SAFETY_ANALYSIS itself, and its
// status.h brings them everywhere.
#include <absl/base/thread_annotations.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define DWS_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define DWS_THREAD_ANNOTATION(x)
#endif
#define CAPABILITY(x) DWS_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY DWS_THREAD_ANNOTATION(scoped_lockable)
#define REQUIRES(...) DWS_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) DWS_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) DWS_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) DWS_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace dws {

// Use it through MutexLock where possible.
class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for its scope.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// If set, WaitFor on this thread releases the mutex and calls this function instead of waiting. For
// a simulation, whose clock stands still while its thread sleeps.
using WaitHook = void (*)(std::chrono::nanoseconds timeout);
inline thread_local WaitHook wait_hook = nullptr;

// A condition variable for Mutex. Waits may end without a notification: test the condition again.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed without a notification.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout)
      REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    if (wait_hook != nullptr) {
      mutex.Unlock();
      wait_hook(timeout);
      mutex.Lock();
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
#if defined(__SANITIZE_THREAD__)
    // TSan in g++ 12 does not intercept pthread_cond_clockwait, which steady waits use.
    const auto until = std::chrono::time_point_cast<std::chrono::system_clock::duration>(
        std::chrono::system_clock::now() + timeout);
    const bool notified = cond_.wait_until(lock, until) == std::cv_status::no_timeout;
#else
    const bool notified = cond_.wait_for(lock, timeout) == std::cv_status::no_timeout;  // steady
#endif
    lock.release();
    return notified;
  }
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace dws
