// OpenGpuCopies, called over a connection: who waits for what.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "common/proto_convert/convert.h"
#include "common/transport/same_host/host_id.h"
#include "proto/sync.grpc.pb.h"
#include "sender_daemon/serve/sync_service.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

using std::chrono::seconds;

// A sender with two threads for full fetches, as a daemon has them. Its trainer's weights are in
// host memory.
struct Sender {
  Sender() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    REQUIRE(server != nullptr);
    stub = v1::SyncService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                        grpc::InsecureChannelCredentials()));
    PublishAll(state, pool, 1, RandomWeights(state->layout(), random));
    hub.Welcome(state);
  }
  ~Sender() {
    hub.Stop();
    server->Shutdown(std::chrono::system_clock::now());
    for (Executor* const executor : {&deltas, &fulls}) executor->Stop();
    loans.Stop();
  }

  grpc::Status Ask(const std::string& host) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(5));
    v1::OpenGpuCopiesRequest request;
    *request.mutable_stream() = ToProto(state->stream);
    *request.mutable_layout_signature() = ToProto(state->layout().signature());
    request.set_host(host);
    request.set_version(1);
    v1::OpenGpuCopiesReply reply;
    return stub->OpenGpuCopies(&context, request, &reply);
  }

  std::mt19937_64 random{Catch::rngSeed()};
  const RankStatePtr state =
      MakeState(MixedLayout(), {.bytes_max = uint64_t{1} << 30, .versions_max = 10});
  ThreadPool pool{1};
  RealClock clock;
  ReceiverHub hub{clock, "job"};
  Executor deltas{1, 16};
  Executor fulls{2, 64};
  TempFolder folder;
  std::unique_ptr<HandleSocket> handles = *HandleSocket::Listen({.path = folder.File("handles")});
  GpuLoans loans{*handles};
  SenderMetrics metrics{"job", 0};
  SnapshotRecheck recheck{[] {}};
  FabricHost fabric{{}, clock};
  EgressLimit egress{0, clock};
  std::atomic<size_t> full_transfers{0};
  SyncServiceImpl service{
      SyncStream::Parts{
          .hub = hub, .metrics = metrics, .recheck = recheck, .refine = [](RefineRequest) {}},
      *handles,
      loans,
      fabric,
      egress,
      deltas,
      fulls,
      full_transfers};
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<v1::SyncService::Stub> stub;
};

TEST_CASE("a question about copies on GPUs is answered while all threads for full fetches are busy",
          "[gpu]") {
  Sender sender;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::promise<void> busy[2];
  for (std::promise<void>& one : busy) {
    REQUIRE(sender.fulls.Post([&one, released] {
      one.set_value();
      released.wait();
    }));
  }
  for (std::promise<void>& one : busy) one.get_future().wait();
  const grpc::Status none = sender.Ask(HostId());
  CHECK(none.error_message() == "this sender has no copy of its snapshot in GPU memory");
  const grpc::Status elsewhere = sender.Ask("another");
  CHECK(elsewhere.error_message() == "this sender is on another host");
  for (const grpc::Status& status : {none, elsewhere}) {
    CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  }
  release.set_value();
}

}  // namespace
}  // namespace dws
