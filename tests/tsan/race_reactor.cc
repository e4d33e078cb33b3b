// A program with a data race in a gRPC reactor, planted. tsan_sees_reactor_race_test.py runs it and
// expects ThreadSanitizer to report it: gRPC is not instrumented, and the suppression of its false
// reports (tests/tsan.supp, tools/bazel/debian/tsan_grpc_order.cc) must not hide ours.
//
//   race_reactor planted   two calls of two clients add to one number, without a lock
//   race_reactor guarded   the same under a mutex: nothing must be reported
//
// Both calls meet inside their reactions, after the additions: no call can end before the other has
// started, so the additions are unordered in every run, whatever the threads do.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "common/base/threads/mutex.h"
#include "proto/admin.grpc.pb.h"

namespace dws {
namespace {

constexpr int kCalls = 2;  // gRPC has at least two threads for callbacks
constexpr std::chrono::seconds kMeetDeadline{30};

class RacyService final : public v1::AdminService::CallbackService {
 public:
  explicit RacyService(bool guarded) : guarded_(guarded) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply*) override {
    if (guarded_) {
      MutexLock lock(mutex_);
      AddInReaction();
    } else {
      AddInReaction();
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Meet()
                        ? grpc::Status::OK
                        : grpc::Status(grpc::StatusCode::ABORTED, "the other call did not come"));
    return reactor;
  }

  int calls() const { return calls_; }

 private:
  // Not inlined: the report must name it.
  [[gnu::noinline]] void AddInReaction() { ++calls_; }

  // Waits, in the reaction, until all calls are in theirs. Relaxed: the meeting itself orders
  // nothing.
  bool Meet() {
    arrived_.fetch_add(1, std::memory_order_relaxed);
    const auto until = std::chrono::steady_clock::now() + kMeetDeadline;
    while (arrived_.load(std::memory_order_relaxed) < kCalls) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  const bool guarded_;
  Mutex mutex_;
  int calls_ = 0;  // the planted race
  std::atomic<int> arrived_{0};
};

bool Call(int port) {
  // A separate channel: calls of one channel could share a connection and be ordered by it.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::AdminService::NewStub(grpc::CreateCustomChannel(
      fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::StatusReply reply;
  const grpc::Status status = stub->Status(&context, v1::StatusRequest(), &reply);
  if (!status.ok()) fmt::print(stderr, "call failed: {}\n", status.error_message());
  return status.ok();
}

// The number of calls that went through.
int Run(bool guarded) {
  RacyService service(guarded);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 0;
  std::atomic<int> ok{0};
  {
    std::thread other([&] { ok += Call(port) ? 1 : 0; });
    ok += Call(port) ? 1 : 0;
    other.join();
  }
  server->Shutdown();
  return ok;
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  fmt::print("instrumented\n");
#else
  fmt::print("not instrumented\n");
#endif
  std::fflush(stdout);
  const std::string_view mode = argc == 2 ? argv[1] : "";
  if (mode != "planted" && mode != "guarded") {
    fmt::print(stderr, "usage: race_reactor planted|guarded\n");
    return 2;
  }
  return dws::Run(mode == "guarded") == dws::kCalls ? 0 : 1;
}
