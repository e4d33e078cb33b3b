#include "tests/simulation/fiber.h"

#include <utility>
#include <vector>

#include "common/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace dws::sim {
namespace {

constexpr size_t kStackBytes = size_t{512} << 10;

Fiber* current = nullptr;

// Stacks are reused: a new one costs page faults at every start of a process.
std::vector<std::unique_ptr<std::byte[]>>& FreeStacks() {
  static std::vector<std::unique_ptr<std::byte[]>> stacks;
  return stacks;
}

std::unique_ptr<std::byte[]> TakeStack() {
  auto& stacks = FreeStacks();
  if (stacks.empty()) return std::unique_ptr<std::byte[]>(new std::byte[kStackBytes]);
  std::unique_ptr<std::byte[]> stack = std::move(stacks.back());
  stacks.pop_back();
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(TakeStack()) {
#if defined(__SANITIZE_THREAD__)
  sanitizer_state_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (started_ && !ended_) {
    unwinding_ = true;
    Resume();
    DWS_CHECK(ended_);
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(sanitizer_state_);
#endif
  FreeStacks().push_back(std::move(stack_));
}

Fiber* Fiber::Current() { return current; }

void Fiber::Resume() {
  DWS_CHECK(current == nullptr && !ended_);
  current = this;
  if (!std::exchange(started_, true)) {
    DWS_CHECK(::getcontext(&context_) == 0);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    ::makecontext(&context_, &Fiber::Main, 0);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_state_, stack_.get(), kStackBytes);
#elif defined(__SANITIZE_THREAD__)
  caller_state_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_state_, 0);
#endif
  DWS_CHECK(::swapcontext(&caller_, &context_) == 0);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_state_, nullptr, nullptr);
#endif
  current = nullptr;
}

void Fiber::ReturnToCaller(bool ends) {
  static_cast<void>(ends);  // matters to AddressSanitizer only, which then frees its fake stack
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &sanitizer_state_, caller_stack_,
                                 caller_stack_bytes_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(caller_state_, 0);
#endif
  DWS_CHECK(::swapcontext(&context_, &caller_) == 0);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_state_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fiber::Suspend() {
  DWS_CHECK(current == this && !unwinding_);
  ReturnToCaller(/*ends=*/false);
  if (unwinding_) throw Unwound();
}

void Fiber::Main() {
  Fiber& self = *current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self.caller_stack_, &self.caller_stack_bytes_);
#endif
  try {
    self.body_();
  } catch (const Unwound&) {
    // The process died while this waited.
  }
  self.ended_ = true;
  self.ReturnToCaller(/*ends=*/true);
}

}  // namespace dws::sim
