#include "common/base/threads/loop_thread.h"

#include <utility>

#include "common/base/check.h"

namespace dws {

LoopThread::LoopThread(Round round) : round_(std::move(round)) { DWS_CHECK(round_ != nullptr); }

LoopThread::~LoopThread() { Stop(); }

void LoopThread::Start(Duration wait) {
  DWS_CHECK(!thread_.joinable());
  thread_ = std::thread([this, wait] { Run(wait); });
}

void LoopThread::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void LoopThread::Stop() {
  {
    // Taken so that the change cannot happen between the loop's check and its wait.
    MutexLock lock(mutex_);
    stopping_.store(true);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LoopThread::Run(Duration wait) {
  while (true) {
    {
      MutexLock lock(mutex_);
      const auto until = std::chrono::steady_clock::now() + wait;
      while (!stopping() && !woken_) {
        const Duration left = until - std::chrono::steady_clock::now();
        if (left <= Duration::zero()) break;
        changed_.WaitFor(mutex_, left);
      }
      if (stopping()) return;
      woken_ = false;
    }
    wait = round_();
  }
}

}  // namespace dws
