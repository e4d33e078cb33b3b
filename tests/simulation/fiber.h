// A thread of a simulated process: product code that blocks runs on it, and yields to the events
// of the simulation wherever it would wait. All fibers share the thread of the simulation, so one
// seed always gives the same course of events.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace dws::sim {

// Lifecycle: the body starts with the first Resume. A fiber that is destroyed before its body has
// ended is unwound: the Suspend it is in throws, so destructors run as the body's stack is left.
// Threads: one.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it suspends itself or ends. Not from inside a fiber.
  void Resume();
  bool ended() const { return ended_; }

  // The fiber that runs now; null: the simulation itself does.
  static Fiber* Current();
  // Called by the fiber itself: returns with the next Resume.
  void Suspend();

 private:
  // What Suspend throws in a fiber that is destroyed.
  struct Unwound {};

  static void Main();
  void ReturnToCaller(bool ends);

  const std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t context_ = {};
  ucontext_t caller_ = {};
  bool started_ = false;
  bool ended_ = false;
  bool unwinding_ = false;
  // For AddressSanitizer and ThreadSanitizer, which need to be told of each switch.
  void* sanitizer_state_ = nullptr;
  void* caller_state_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace dws::sim
