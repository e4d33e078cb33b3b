#include "common/service/grpc/server_stream.h"

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/threads/mailbox.h"
#include "proto/group.grpc.pb.h"

namespace dws {
namespace {

constexpr size_t kQueueMax = 2;

// Writes nothing before `open`, so that a test decides what is queued together.
class Stream final : public ServerStream<v1::GroupUp, v1::GroupDown> {
 public:
  using OnHello = std::function<Status(Stream&)>;

  static Stream* Start(OnHello on_hello, Mailbox<Status>& ended) {
    return Run(std::shared_ptr<Stream>(new Stream(std::move(on_hello), ended)));
  }
  void Say(const std::string& text) {
    v1::GroupDown down;
    down.mutable_welcome()->set_receiver_id(text);
    Send(std::move(down));
  }
  void Open() {
    Update([this] { open_ = true; });
  }

 private:
  Stream(OnHello on_hello, Mailbox<Status>& ended)
      : ServerStream("the tester", kQueueMax), on_hello_(std::move(on_hello)), ended_(ended) {}
  Status OnMessage(const v1::GroupUp&) override { return on_hello_(*this); }
  void OnEnd(const Status& reason) override { static_cast<void>(ended_.Put(reason)); }
  Fill Next() override { return open_ ? ServerStream::Next() : nullptr; }

  const OnHello on_hello_;
  Mailbox<Status>& ended_;
  bool open_ GUARDED_BY(mutex_) = false;
};

// A server whose one call does `on_hello` for its first message.
class Service final : public v1::GroupService::CallbackService {
 public:
  explicit Service(Stream::OnHello on_hello) : on_hello_(std::move(on_hello)) {
    server_ = grpc::ServerBuilder().RegisterService(this).BuildAndStart();
    const auto channel = server_->InProcessChannel({});
    call_ = v1::GroupService::NewStub(channel)->Join(&context_);
    REQUIRE(call_->Write(v1::GroupUp()));
  }
  ~Service() override { server_->Shutdown(); }

  grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>* Join(grpc::CallbackServerContext*) override {
    return Stream::Start(on_hello_, ended_);
  }

  // What the client reads until the end, and how that ends.
  std::vector<std::string> Read() {
    std::vector<std::string> texts;
    v1::GroupDown down;
    while (call_->Read(&down)) texts.push_back(down.welcome().receiver_id());
    end_ = FromGrpc(call_->Finish());
    return texts;
  }
  const Status& end() const { return end_; }
  // What the stream was told at its end.
  Status ended() { return *ended_.Take(); }

 private:
  const Stream::OnHello on_hello_;
  Mailbox<Status> ended_{1};
  std::unique_ptr<grpc::Server> server_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::GroupUp, v1::GroupDown>> call_;
  Status end_;
};

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a stream that ends after its queue writes that first", "[grpc]") {
  Service service([](Stream& stream) {
    stream.Say("one");
    stream.Say("two");
    stream.Open();
    stream.EndAfterQueue(AbortedError("enough"));
    stream.Say("too late");
    return OkStatus();
  });
  CHECK(service.Read() == Texts{"one", "two"});
  CHECK(service.end() == AbortedError("enough"));
  CHECK(service.ended() == AbortedError("enough"));
}

TEST_CASE("a stream that ends at once drops its queue and keeps its first reason", "[grpc]") {
  Service service([](Stream& stream) {
    stream.Say("one");
    stream.EndAfterQueue(AbortedError("enough"));
    stream.EndNow(UnavailableError("another reason"));
    return OkStatus();
  });
  CHECK(service.Read().empty());
  CHECK(service.end() == AbortedError("enough"));
}

TEST_CASE("a stream whose peer does not read ends, and drops its queue", "[grpc]") {
  Service service([](Stream& stream) {
    for (size_t i = 0; i <= kQueueMax; ++i) stream.Say("message");
    return OkStatus();
  });
  CHECK(service.Read().empty());
  CHECK(absl::IsResourceExhausted(service.end()));
}

TEST_CASE("a stream that refuses a message ends with its reason", "[grpc]") {
  Service service([](Stream&) { return InvalidArgumentError("not this"); });
  CHECK(service.Read().empty());
  CHECK(service.end() == InvalidArgumentError("not this"));
  CHECK(service.ended() == InvalidArgumentError("not this"));
}

}  // namespace dws
