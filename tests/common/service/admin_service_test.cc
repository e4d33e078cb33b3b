// The operator's service over real sockets, with operations that each test scripts.
#include "common/service/grpc/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/model/limits.h"
#include "common/service/grpc/grpc_server.h"
#include "common/service/lifecycle.h"
#include "proto/admin.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;

class ScriptedOperations final : public AdminOperations {
 public:
  using Script = std::function<dws::Status(const Sink&)>;

  void FillStatus(v1::StatusReply& reply) const override {
    reply.set_daemon("test");
    reply.set_uptime_seconds(static_cast<double>(++fills));
  }
  dws::Status Verify(const Sink& sink) override { return Run(verify, sink); }
  dws::Status Resync(const v1::ResyncRequest& request, const Sink& sink) override {
    resync_full = request.full();
    return Run(verify, sink);
  }
  dws::Status Drain(const v1::DrainRequest& request, const Sink& sink) override {
    v1::OperationProgress progress;
    progress.set_step(request.undo() ? "undone" : "drained");
    progress.set_finished(true);
    sink(progress);
    return OkStatus();
  }
  dws::Status Evict(const v1::EvictRequest& request, const Sink& sink) override {
    v1::OperationProgress progress;
    progress.set_step(fmt::format("member {}: {}", request.member_index(), request.reason()));
    progress.set_finished(true);
    sink(progress);
    return OkStatus();
  }
  dws::Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& sink) override {
    v1::OperationProgress progress;
    progress.set_step(fmt::format("forgotten: {}", request.stream().incarnation()));
    progress.set_finished(true);
    sink(progress);
    return OkStatus();
  }

  Script verify = [](const Sink&) { return OkStatus(); };
  mutable std::atomic<int> fills{0};
  std::atomic<int> running{0};
  std::atomic<bool> resync_full{false};

 private:
  dws::Status Run(const Script& script, const Sink& sink) {
    ++running;
    const dws::Status status = script(sink);
    --running;
    return status;
  }
};

// Runs until its caller has hung up.
dws::Status UntilHungUp(const AdminOperations::Sink& sink) {
  const bool gone = Eventually([&] { return !sink(v1::OperationProgress()); }, seconds(300));
  return gone ? CancelledError("hung up") : DeadlineExceededError("nobody hung up");
}

struct Daemon {
  Daemon() {
    auto made = GrpcServer::Start({.unix_socket = folder.path() + "/a.sock",
                                   .services = {{"dws.v1.AdminService", admin.AddServer()}},
                                   .lifecycle = &lifecycle});
    REQUIRE(made.ok());
    local = *std::move(made);
    made = GrpcServer::Start({.listen = "127.0.0.1:0",
                              .insecure = true,
                              .services = {{"dws.v1.AdminService", admin.AddServer()}},
                              .lifecycle = &lifecycle});
    REQUIRE(made.ok());
    remote = *std::move(made);
  }
  ~Daemon() { admin.Stop(); }

  std::unique_ptr<v1::AdminService::Stub> Stub() const {
    return v1::AdminService::NewStub(grpc::CreateChannel("unix:" + folder.path() + "/a.sock",
                                                         grpc::InsecureChannelCredentials()));
  }

  TempFolder folder;
  RealClock clock;
  Lifecycle lifecycle;
  ScriptedOperations operations;
  AdminService admin{
      operations, clock, {.fill_tls = [](v1::TlsStatus& tls) { tls.set_identity("dws://test"); }}};
  std::unique_ptr<GrpcServer> local;
  std::unique_ptr<GrpcServer> remote;
};

// A streaming call in progress.
template <typename Message>
struct Call {
  v1::OperationProgress ReadAll() {
    v1::OperationProgress last;
    v1::OperationProgress message;
    while (reader->Read(&message)) {
      last = message;
      ++messages;
    }
    return last;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<Message>> reader;
  int messages = 0;
};
using Watching = Call<v1::StatusReply>;
using Operating = Call<v1::OperationProgress>;

std::unique_ptr<Watching> Watch(v1::AdminService::Stub& stub, double interval) {
  auto call = std::make_unique<Watching>();
  call->context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  v1::WatchRequest request;
  request.set_interval_seconds(interval);
  call->reader = stub.Watch(&call->context, request);
  return call;
}

std::unique_ptr<Operating> Verify(v1::AdminService::Stub& stub) {
  auto call = std::make_unique<Operating>();
  call->context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  call->reader = stub.Verify(&call->context, v1::VerifyRequest());
  return call;
}

}  // namespace

TEST_CASE("both servers give one status with the fields that all daemons have", "[admin]") {
  const Daemon daemon;
  const std::string port = std::to_string(daemon.remote->port().value());
  for (const std::string& target :
       {"unix:" + daemon.folder.path() + "/a.sock", "127.0.0.1:" + port}) {
    const auto stub =
        v1::AdminService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::StatusReply reply;
    REQUIRE(stub->Status(&context, v1::StatusRequest(), &reply).ok());
    CHECK(reply.daemon() == "test");
    CHECK_FALSE(reply.build_version().empty());
    CHECK(reply.build().protocol_major() > 0);
    CHECK_FALSE(reply.build().compiler().empty());
    CHECK(reply.tls().identity() == "dws://test");
    CHECK(reply.unix_seconds() > 1.6e9);
  }
  CHECK(daemon.operations.fills == 2);
}

TEST_CASE("a watch reports the status repeatedly until the caller hangs up", "[admin]") {
  const Daemon daemon;
  const auto stub = daemon.Stub();
  const auto begin = daemon.clock.Now();
  const auto watch = Watch(*stub, 0.1);
  v1::StatusReply reply;
  double before = 0;
  for (int i = 0; i < 4; ++i) {
    REQUIRE(watch->reader->Read(&reply));
    CHECK(reply.uptime_seconds() > before);  // a new one; a slow reader misses some
    before = reply.uptime_seconds();
  }
  const double seconds_passed = ToSeconds(daemon.clock.Now() - begin);
  CHECK(seconds_passed >= 0.29);
  watch->context.TryCancel();
  CHECK(watch->reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("a watch's interval has bounds", "[admin]") {
  const Daemon daemon;
  const auto stub = daemon.Stub();
  for (const double interval : {0.09, -1.0, 3601.0, std::nan(""), HUGE_VAL}) {
    const auto watch = Watch(*stub, interval);
    v1::StatusReply reply;
    CHECK_FALSE(watch->reader->Read(&reply));
    CHECK(watch->reader->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  const auto watch = Watch(*stub, 0);
  v1::StatusReply reply;
  CHECK(watch->reader->Read(&reply));
}

TEST_CASE("watchers are bounded and one that hangs up makes room", "[admin]") {
  const Daemon daemon;
  const auto stub = daemon.Stub();
  v1::StatusReply reply;
  std::vector<std::unique_ptr<Watching>> watchers;
  for (size_t i = 0; i < limits::kWatchersMax; ++i) {
    watchers.push_back(Watch(*stub, 0.1));
    REQUIRE(watchers.back()->reader->Read(&reply));
  }
  CHECK(Watch(*stub, 1)->reader->Finish().error_code() == kExhausted);
  watchers.pop_back();
  CHECK(Eventually([&] { return Watch(*stub, 1)->reader->Read(&reply); }));
}

TEST_CASE("open watches do not delay the shutdown", "[admin]") {
  Daemon daemon;
  const auto stub = daemon.Stub();
  v1::StatusReply reply;
  const auto read = Watch(*stub, 0.1);
  const auto unread = Watch(*stub, 3600);
  REQUIRE(read->reader->Read(&reply));
  const auto begin = daemon.clock.Now();
  daemon.admin.Stop();
  daemon.local->Shutdown(seconds(60));
  CHECK(daemon.clock.Now() - begin < seconds(20));
  while (read->reader->Read(&reply)) continue;
  const grpc::StatusCode code = read->reader->Finish().error_code();
  INFO("code " << code);  // CANCELLED: the watch was not over when the server stopped waiting
  CHECK((code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED));
}

TEST_CASE("a slow reader never blocks an operation and still gets the last message", "[admin]") {
  Daemon daemon;
  std::atomic<bool> over{false};
  daemon.operations.verify = [&over](const AdminOperations::Sink& sink) {
    v1::OperationProgress progress;
    progress.set_step(std::string(100'000, 'x'));
    for (uint64_t i = 1; i <= 2000; ++i) {
      progress.set_done_bytes(i);
      progress.set_finished(i == 2000);
      if (!sink(progress)) return CancelledError("hung up");
    }
    over = true;
    return OkStatus();
  };
  const auto stub = daemon.Stub();
  const auto call = Verify(*stub);
  REQUIRE(Eventually([&over] { return over.load(); }));  // nobody has read anything
  const v1::OperationProgress last = call->ReadAll();
  CHECK(call->reader->Finish().ok());
  CHECK(last.finished());
  CHECK(last.done_bytes() == 2000);
  CHECK(call->messages < 1000);
}

TEST_CASE("a caller that reads nothing does not delay the shutdown", "[admin]") {
  Daemon daemon;
  daemon.operations.verify = [](const AdminOperations::Sink& sink) {
    v1::OperationProgress progress;
    progress.set_step(std::string(1'000'000, 'x'));
    const bool gone = Eventually([&] { return !sink(progress); }, seconds(300));
    return gone ? CancelledError("hung up") : OkStatus();
  };
  const auto stub = daemon.Stub();
  const auto call = Verify(*stub);
  REQUIRE(Eventually([&] { return daemon.operations.running == 1; }));
  const auto begin = daemon.clock.Now();
  daemon.admin.Stop();
  daemon.local->Shutdown(seconds(60));
  CHECK(daemon.clock.Now() - begin < seconds(20));
  CHECK(daemon.operations.running == 0);
}

TEST_CASE("an operation ends when its caller hangs up", "[admin]") {
  Daemon daemon;
  daemon.operations.verify = UntilHungUp;
  const auto stub = daemon.Stub();
  const auto call = Verify(*stub);
  REQUIRE(Eventually([&] { return daemon.operations.running == 1; }));
  call->context.TryCancel();
  CHECK(Eventually([&] { return daemon.operations.running == 0; }));
}

TEST_CASE("an operation gets its request and its caller gets the error", "[admin]") {
  Daemon daemon;
  daemon.operations.verify = [](const auto&) { return FailedPreconditionError("no engine"); };
  const auto stub = daemon.Stub();
  Operating call;
  v1::ResyncRequest request;
  request.set_full(true);
  call.reader = stub->Resync(&call.context, request);
  call.ReadAll();
  const grpc::Status status = call.reader->Finish();
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(status.error_message() == "no engine");
  CHECK(daemon.operations.resync_full);
}

TEST_CASE("operations are bounded and a drain does not wait for them", "[admin]") {
  Daemon daemon;
  daemon.operations.verify = UntilHungUp;
  const auto stub = daemon.Stub();
  std::vector<std::unique_ptr<Operating>> calls;
  for (size_t i = 0; i < limits::kAdminOperationsMax; ++i) calls.push_back(Verify(*stub));
  REQUIRE(Eventually(
      [&] { return daemon.operations.running == static_cast<int>(limits::kAdminOperationsMax); }));
  CHECK(Verify(*stub)->reader->Finish().error_code() == kExhausted);
  Operating drain;
  v1::DrainRequest request;
  request.set_undo(true);
  drain.reader = stub->Drain(&drain.context, request);
  CHECK(drain.ReadAll().step() == "undone");
  CHECK(drain.reader->Finish().ok());
  calls.pop_back();
  CHECK(Eventually([&] {
    const auto again = Verify(*stub);
    v1::OperationProgress progress;
    return again->reader->Read(&progress);
  }));
}

TEST_CASE("a daemon that stops ends operations and refuses new ones", "[admin]") {
  Daemon daemon;
  daemon.operations.verify = UntilHungUp;
  const auto stub = daemon.Stub();
  const auto call = Verify(*stub);
  REQUIRE(Eventually([&] { return daemon.operations.running == 1; }));
  daemon.admin.Stop();
  CHECK(daemon.operations.running == 0);
  call->ReadAll();
  // Stop waits only briefly for the call to finish: on a busy machine it is cancelled.
  const grpc::StatusCode ended = call->reader->Finish().error_code();
  CHECK((ended == grpc::StatusCode::UNAVAILABLE || ended == grpc::StatusCode::CANCELLED));
  CHECK(Verify(*stub)->reader->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(Watch(*stub, 1)->reader->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
}

}  // namespace dws
