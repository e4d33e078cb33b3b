// Tells ThreadSanitizer the order that Debian's uninstrumented gRPC 1.51 keeps by means TSan cannot
// see. Whatever links @debian//:grpc++ gets it under --config=tsan; tests/tsan.supp has the rest.
//
//   start of an operation        happens before   its completion (callback, or completion queue)
//   the start of a server        happens before   every callback
//   the end of a callback        happens before   the start of a later one of the same call
//   gpr_mu_unlock                happens before   the next gpr_mu_lock (it guards OnDone's queue)
//
// Callbacks of two calls are not ordered: what they share without a lock is reported. Two of one
// call are, unless they overlap in time.
//
// It works by defining, in the executable, functions that gRPC's shared libraries export and call
// by name; the layout of one of their classes is copied here. Check it again for another version of
// gRPC.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/support/sync.h>
#include <sanitizer/tsan_interface.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

char server_started;  // its address is the name of a TSan sync object

template <typename Function>
Function Next(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) std::abort();  // not the gRPC version that this file is for
  return reinterpret_cast<Function>(found);
}

// The call an operation was started on, by tag. Relaxed atomics order nothing; an entry that
// another tag has overwritten loses one edge, which costs at most a false report.
struct Operation {
  std::atomic<void*> tag;
  std::atomic<grpc_call*> call;
};
std::array<Operation, 1 << 16> operations;

Operation& OperationOf(void* tag) {
  return operations[(reinterpret_cast<std::uintptr_t>(tag) >> 4) % operations.size()];
}

grpc_call* CallOf(void* tag) {
  Operation& operation = OperationOf(tag);
  if (operation.tag.load(std::memory_order_relaxed) != tag) return nullptr;
  return operation.call.load(std::memory_order_relaxed);
}

// The call whose callback this thread was given by grpc_completion_queue_next, until it asks again.
thread_local grpc_call* call_in_callback = nullptr;

// grpc_core::ApplicationCallbackExecCtx: the callbacks this thread has to run when it leaves gRPC.
struct CallbackContext {
  std::uintptr_t flags;
  grpc_completion_queue_functor* head;
  grpc_completion_queue_functor* tail;
};

void RunCallbacks(CallbackContext* context) {
  while (context->head != nullptr) {
    grpc_completion_queue_functor* callback = context->head;
    context->head = callback->internal_next;
    if (callback->internal_next == nullptr) context->tail = nullptr;
    __tsan_acquire(callback);
    __tsan_acquire(&server_started);
    grpc_call* call = CallOf(callback);  // before it runs: the callback may end the call
    if (call != nullptr) __tsan_acquire(call);
    callback->functor_run(callback, callback->internal_success);
    if (call != nullptr) __tsan_release(call);
  }
}

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t op_count,
                                      void* tag, void* reserved) {
  static const auto next = Next<decltype(&grpc_call_start_batch)>("grpc_call_start_batch");
  Operation& operation = OperationOf(tag);
  operation.tag.store(tag, std::memory_order_relaxed);
  operation.call.store(call, std::memory_order_relaxed);
  __tsan_release(tag);
  return next(call, ops, op_count, tag, reserved);
}

void grpc_server_start(grpc_server* server) {
  static const auto next = Next<decltype(&grpc_server_start)>("grpc_server_start");
  __tsan_release(&server_started);
  next(server);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  static const auto next =
      Next<decltype(&grpc_completion_queue_next)>("grpc_completion_queue_next");
  if (call_in_callback != nullptr) __tsan_release(call_in_callback);
  call_in_callback = nullptr;
  grpc_event event = next(queue, deadline, reserved);
  if (event.type != GRPC_OP_COMPLETE) return event;
  __tsan_acquire(event.tag);
  __tsan_acquire(&server_started);
  call_in_callback = CallOf(event.tag);
  if (call_in_callback != nullptr) __tsan_acquire(call_in_callback);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  static const auto next =
      Next<decltype(&grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  grpc_event event = next(queue, tag, deadline, reserved);
  __tsan_acquire(tag);
  return event;
}

void gpr_mu_lock(gpr_mu* mutex) {
  static const auto next = Next<decltype(&gpr_mu_lock)>("gpr_mu_lock");
  next(mutex);
  __tsan_acquire(mutex);
}

int gpr_mu_trylock(gpr_mu* mutex) {
  static const auto next = Next<decltype(&gpr_mu_trylock)>("gpr_mu_trylock");
  const int locked = next(mutex);
  if (locked != 0) __tsan_acquire(mutex);
  return locked;
}

void gpr_mu_unlock(gpr_mu* mutex) {
  static const auto next = Next<decltype(&gpr_mu_unlock)>("gpr_mu_unlock");
  __tsan_release(mutex);
  next(mutex);
}

int gpr_cv_wait(gpr_cv* condition, gpr_mu* mutex, gpr_timespec deadline) {
  static const auto next = Next<decltype(&gpr_cv_wait)>("gpr_cv_wait");
  __tsan_release(mutex);
  const int timed_out = next(condition, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

// Replaces grpc_core::ApplicationCallbackExecCtx::~ApplicationCallbackExecCtx, under both its
// names. After this, the real one finds no callback left and clears the thread's context.
void _ZN9grpc_core26ApplicationCallbackExecCtxD1Ev(CallbackContext* context) {
  using Destructor = void (*)(CallbackContext*);
  static const auto next = Next<Destructor>("_ZN9grpc_core26ApplicationCallbackExecCtxD1Ev");
  RunCallbacks(context);
  next(context);
}

void _ZN9grpc_core26ApplicationCallbackExecCtxD2Ev(CallbackContext* context) {
  _ZN9grpc_core26ApplicationCallbackExecCtxD1Ev(context);
}

}  // extern "C"
