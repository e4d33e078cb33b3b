// What a sender says of a version, when the connection breaks meanwhile.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <memory>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/sources/sender/fetch.h"

namespace dws {
namespace {

// Answers as if the connection broke, for the first calls.
class BreakingSender final : public v1::SyncService::Service {
 public:
  explicit BreakingSender(int broken) : broken_(broken) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }

  grpc::Status Describe(grpc::ServerContext* /*context*/, const v1::DescribeRequest* /*request*/,
                        v1::DescribeReply* reply) override {
    *reply->add_slices() = ToProto(Digest{});
    if (++calls_ <= broken_) return {grpc::StatusCode::UNAVAILABLE, "Socket closed"};
    return grpc::Status::OK;
  }

  Result<PublishedState> Ask() {
    ActiveCalls calls;
    Fetcher fetcher(
        grpc::CreateChannel(fmt::format("127.0.0.1:{}", port_), grpc::InsecureChannelCredentials()),
        calls, Digest{}, [](const grpc::ClientContext&) { return OkStatus(); });
    return fetcher.Describe(StreamId{}, WeightVersion(1));
  }
  int calls() const { return calls_; }

 private:
  const int broken_;
  int calls_ = 0;  // one at a time
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

TEST_CASE("a sender is asked again what a version is after its connection broke", "[fetch]") {
  BreakingSender sender(limits::kFetchAttemptsMax - 1);
  const auto state = sender.Ask();
  REQUIRE(state.ok());
  CHECK(state->slices.size() == 1);
  CHECK(sender.calls() == limits::kFetchAttemptsMax);
}

TEST_CASE("a sender whose connection always breaks is not asked for ever", "[fetch]") {
  BreakingSender sender(1000);
  const auto state = sender.Ask();
  CHECK(absl::IsUnavailable(state.status()));
  CHECK_THAT(ToString(state.status()), Catch::Contains("Socket closed"));
  CHECK(sender.calls() == limits::kFetchAttemptsMax);
}

}  // namespace dws
