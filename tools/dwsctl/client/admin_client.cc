#include "tools/dwsctl/client/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/model/limits.h"
#include "common/service/grpc/grpc_credentials.h"
#include "proto/admin.grpc.pb.h"

namespace dws::dwsctl {

// The context of one call. Its Hangup can cancel it as long as the call runs.
class CallInProgress {
 public:
  explicit CallInProgress(Hangup& hangup) : hangup_(hangup) {
    const MutexLock lock(hangup_.mutex_);
    hangup_.call_ = &context_;
    if (hangup_.hung_up_) context_.TryCancel();
  }
  ~CallInProgress() {
    const MutexLock lock(hangup_.mutex_);
    hangup_.call_ = nullptr;
  }
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;
  grpc::ClientContext& context() { return context_; }

 private:
  Hangup& hangup_;
  grpc::ClientContext context_;
};

void Hangup::HangUp() {
  const MutexLock lock(mutex_);
  hung_up_ = true;
  if (call_ != nullptr) call_->TryCancel();
}

void Hangup::EndCall() {
  const MutexLock lock(mutex_);
  if (call_ != nullptr) call_->TryCancel();
}

bool Hangup::hung_up() const {
  const MutexLock lock(mutex_);
  return hung_up_;
}

namespace {

Status Explain(const grpc::Status& error, const DaemonTarget& target,
               std::chrono::milliseconds timeout) {
  switch (error.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return UnavailableError(
          "no daemon answers at {} ({}); is it running, is this its address, does it use TLS?",
          target.text, error.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceededError("{} did not answer within {} ms; --timeout allows longer",
                                   target.text, timeout.count());
    case grpc::StatusCode::UNIMPLEMENTED:
      return UnimplementedError(
          "{} does not know this call ({}); it is not a DWS daemon, or has an older version",
          target.text, error.error_message());
    default:
      return MakeStatus(static_cast<absl::StatusCode>(error.error_code()),
                        fmt::format("{}: {}", target.text, error.error_message()));
  }
}

}  // namespace

struct AdminClient::Connection {
  DaemonTarget target;
  std::chrono::milliseconds timeout;
  std::unique_ptr<v1::AdminService::Stub> stub;

  using ProgressReader = std::unique_ptr<grpc::ClientReader<v1::OperationProgress>>;
  ProgressReader Begin(grpc::ClientContext* context, const v1::VerifyRequest& request) {
    return stub->Verify(context, request);
  }
  ProgressReader Begin(grpc::ClientContext* context, const v1::ResyncRequest& request) {
    return stub->Resync(context, request);
  }
  ProgressReader Begin(grpc::ClientContext* context, const v1::DrainRequest& request) {
    return stub->Drain(context, request);
  }
  ProgressReader Begin(grpc::ClientContext* context, const v1::EvictRequest& request) {
    return stub->Evict(context, request);
  }
  ProgressReader Begin(grpc::ClientContext* context, const v1::ForgetStreamRequest& request) {
    return stub->ForgetStream(context, request);
  }
  ProgressReader Begin(grpc::ClientContext* context, const v1::AdminBoundaryRequest& request) {
    return stub->Boundary(context, request);
  }
};

AdminClient::AdminClient(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
AdminClient::AdminClient(AdminClient&&) noexcept = default;
AdminClient& AdminClient::operator=(AdminClient&&) noexcept = default;
AdminClient::~AdminClient() = default;

Result<AdminClient> AdminClient::Create(const DaemonTarget& target, const TlsFlags& tls,
                                        std::chrono::milliseconds timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kGrpcMessageBytesMax);
  // Connect directly, even if http_proxy is set.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // By default clients of one target share connections, and so their back-off. Do not share.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // In gRPC this option also limits the time of one attempt. A busy machine may need all of it; if
  // nothing listens, the connection is refused at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(timeout.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  TlsFiles files;
  if (!target.local) files = {.ca = tls.ca, .cert = tls.cert, .key = tls.key};
  const auto credentials = LoadChannelCredentials(files);
  if (!credentials.ok()) return InvalidArgumentError("{}", Message(credentials.status()));
  if (files.given() && !tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(tls.server_name);
  }
  auto connection = std::make_unique<Connection>();
  connection->target = target;
  connection->timeout = timeout;
  connection->stub = v1::AdminService::NewStub(
      grpc::CreateCustomChannel(target.grpc_target, *credentials, arguments));
  return AdminClient(std::move(connection));
}

const DaemonTarget& AdminClient::target() const { return connection_->target; }

Result<v1::StatusReply> AdminClient::FetchStatus() {
  Hangup never;
  return FetchStatus(never);
}

Result<v1::StatusReply> AdminClient::FetchStatus(Hangup& hangup) {
  CallInProgress call(hangup);
  call.context().set_deadline(std::chrono::system_clock::now() + connection_->timeout);
  v1::StatusReply reply;
  const grpc::Status status =
      connection_->stub->Status(&call.context(), v1::StatusRequest(), &reply);
  if (!status.ok()) return Explain(status, connection_->target, connection_->timeout);
  return reply;
}

Result<v1::PlanReply> AdminClient::FetchPlan() {
  Hangup never;
  CallInProgress call(never);
  call.context().set_deadline(std::chrono::system_clock::now() + connection_->timeout);
  v1::PlanReply reply;
  const grpc::Status status = connection_->stub->Plan(&call.context(), v1::PlanRequest(), &reply);
  if (!status.ok()) return Explain(status, connection_->target, connection_->timeout);
  return reply;
}

Status AdminClient::Watch(double interval_seconds, Hangup& hangup,
                          const std::function<void(const v1::StatusReply&)>& sink) {
  CallInProgress call(hangup);
  v1::WatchRequest request;
  request.set_interval_seconds(interval_seconds);
  const auto reader = connection_->stub->Watch(&call.context(), request);
  v1::StatusReply reply;
  while (reader->Read(&reply)) sink(reply);
  const grpc::Status status = reader->Finish();
  if (status.ok()) return UnavailableError("{} ended the call", connection_->target.text);
  return Explain(status, connection_->target, connection_->timeout);
}

Status AdminClient::Operate(const OperationRequest& request, Hangup& hangup,
                            const std::function<bool(const v1::OperationProgress&)>& sink) {
  CallInProgress call(hangup);
  const auto reader = std::visit(
      [&](const auto& one) { return connection_->Begin(&call.context(), one); }, request);
  v1::OperationProgress progress;
  bool wanted = true;
  while (wanted && reader->Read(&progress)) wanted = sink(progress);
  if (!wanted) call.context().TryCancel();
  const grpc::Status status = reader->Finish();
  if (status.ok() || !wanted) return OkStatus();
  return Explain(status, connection_->target, connection_->timeout);
}

Result<AdminClient> ConnectDaemon(const TargetFlags& flags) {
  DWS_ASSIGN_OR_RETURN(const DaemonTarget target, FindDaemon(flags));
  return AdminClient::Create(target, flags.tls, flags.timeout);
}

}  // namespace dws::dwsctl
