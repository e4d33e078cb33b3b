#include "tests/tools/dwsctl/fake_daemon.h"

#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <thread>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "proto/admin.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tools/dwsctl/base/command.h"

namespace dws::dwsctl {

FakeAnswers::FakeAnswers() {
  reply.set_daemon("dws-receiver");
  reply.set_ready(true);
  reply.mutable_receiver()->set_receiver_id("rollout-0");
  reply.mutable_receiver()->set_committed_version(12);
  reply.mutable_receiver()->set_version_lag(0);
}

class FakeDaemon::Service final : public v1::AdminService::Service {
 public:
  explicit Service(FakeAnswers& answers) : answers_(answers) {}

  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    *reply = answers_.reply;
    return Error();
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::StatusReply>* writer) override {
    if (!Error().ok()) return Error();
    for (int i = 0; i < 3; ++i) writer->Write(answers_.reply);
    while (answers_.hang && !context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  }
  grpc::Status Verify(grpc::ServerContext* context, const v1::VerifyRequest*,
                      grpc::ServerWriter<v1::OperationProgress>* writer) override {
    return Operate(*context, *writer);
  }
  grpc::Status Resync(grpc::ServerContext* context, const v1::ResyncRequest* request,
                      grpc::ServerWriter<v1::OperationProgress>* writer) override {
    answers_.resync = *request;
    return Operate(*context, *writer);
  }
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     grpc::ServerWriter<v1::OperationProgress>* writer) override {
    answers_.drain = *request;
    return Operate(*context, *writer);
  }
  grpc::Status Evict(grpc::ServerContext* context, const v1::EvictRequest* request,
                     grpc::ServerWriter<v1::OperationProgress>* writer) override {
    answers_.evict = *request;
    return Operate(*context, *writer);
  }
  grpc::Status ForgetStream(grpc::ServerContext* context, const v1::ForgetStreamRequest* request,
                            grpc::ServerWriter<v1::OperationProgress>* writer) override {
    answers_.forget = *request;
    return Operate(*context, *writer);
  }
  grpc::Status Boundary(grpc::ServerContext* context, const v1::AdminBoundaryRequest*,
                        grpc::ServerWriter<v1::OperationProgress>* writer) override {
    return Operate(*context, *writer);
  }

 private:
  grpc::Status Error() const {
    return {static_cast<grpc::StatusCode>(answers_.error_code), answers_.error};
  }
  grpc::Status Operate(grpc::ServerContext& context,
                       grpc::ServerWriter<v1::OperationProgress>& writer) {
    ++answers_.calls;
    for (const v1::OperationProgress& progress : answers_.progress) writer.Write(progress);
    while (answers_.hang && !context.IsCancelled()) std::this_thread::yield();
    return Error();
  }
  FakeAnswers& answers_;
};

struct FakeDaemon::Server {
  std::unique_ptr<grpc::Server> server;
};

FakeDaemon::FakeDaemon(const std::string& socket)
    : service_(std::make_unique<Service>(answers)), server_(std::make_unique<Server>()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_->server = builder.BuildAndStart();
  DWS_CHECK(server_->server != nullptr);
}

FakeDaemon::~FakeDaemon() {
  server_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

std::string FakeDaemon::address() const { return "127.0.0.1:" + std::to_string(port_); }

namespace {

std::string ReadAll(int descriptor) {
  std::string text(static_cast<size_t>(lseek(descriptor, 0, SEEK_END)), '\0');
  DWS_CHECK(pread(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return text;
}

}  // namespace

Ran RunLine(const std::string& line) {
  const UniqueFd out(memfd_create("out", MFD_CLOEXEC));
  const UniqueFd error(memfd_create("error", MFD_CLOEXEC));
  Console console(out.get(), error.get());
  Context context{.console = console};
  CLI::App app("", "dwsctl");
  AddAllCommands(app, context);
  app.parse(line);
  return {.code = context.code, .out = ReadAll(out.get()), .error = ReadAll(error.get())};
}

}  // namespace dws::dwsctl
