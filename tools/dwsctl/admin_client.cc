#include "tools/dwsctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include "common/model/limits.h"
#include "proto/admin.grpc.pb.h"

namespace dws::dwsctl {
namespace {

Status Explain(const grpc::Status& error, const DaemonTarget& target,
               std::chrono::milliseconds timeout) {
  switch (error.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return UnavailableError(
          "no daemon answers at {} ({}); is it running, and is this its address?", target.text,
          error.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceededError("{} did not answer within {} ms; --timeout allows longer",
                                   target.text, timeout.count());
    case grpc::StatusCode::UNIMPLEMENTED:
      return UnimplementedError(
          "{} is a gRPC server, but no DWS daemon: it has no dws.v1.AdminService", target.text);
    default:
      return MakeStatus(static_cast<absl::StatusCode>(error.error_code()),
                        fmt::format("{}: {}", target.text, error.error_message()));
  }
}

}  // namespace

Result<v1::StatusReply> FetchStatus(const DaemonTarget& target, std::chrono::milliseconds timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kGrpcMessageBytesMax);
  // A daemon is asked directly, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(target.grpc_target, grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::AdminService::NewStub(channel);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  v1::StatusReply reply;
  const grpc::Status status = stub->Status(&context, v1::StatusRequest(), &reply);
  if (!status.ok()) return Explain(status, target, timeout);
  return reply;
}

}  // namespace dws::dwsctl
