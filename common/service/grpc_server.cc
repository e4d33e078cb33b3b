#include "common/service/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/socket.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/service/grpc_runtime.h"
#include "common/service/listen_address.h"
#include "common/service/unix_socket.h"

namespace dws {
namespace {

// Process-wide switches of the library; servers built later have both.
void EnableHealthAndReflection() {
  static const bool once = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(once);
}

void SetLimits(grpc::ServerBuilder& builder) {
  using std::chrono::milliseconds;
  const auto interval = static_cast<int>(milliseconds(limits::kKeepaliveInterval).count());
  const auto timeout = static_cast<int>(milliseconds(limits::kKeepaliveTimeout).count());
  builder.SetMaxReceiveMessageSize(limits::kGrpcMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kGrpcMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, timeout);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients ping too; the default treats more than one ping in five minutes as an attack.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, interval / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // With it, two daemons given one port would both start and share its clients.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

class GrpcServer::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {}
  ~Impl() { Shutdown(limits::kShutdownGrace); }

  Status Start();
  void Shutdown(std::chrono::milliseconds grace);
  std::optional<uint16_t> port() const { return port_; }

 private:
  Status AddPorts(grpc::ServerBuilder& builder, int& tcp_port) const;

  const Options options_;
  std::optional<uint16_t> port_;
  Lifecycle::ListenerId listener_;
  Mutex mutex_;
  bool shut_down_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Server> server_;
};

Status GrpcServer::Impl::AddPorts(grpc::ServerBuilder& builder, int& tcp_port) const {
  if (options_.unix_socket.empty() && options_.listen.empty()) {
    return InvalidArgumentError("a gRPC server needs a socket path or an address to listen on");
  }
  if (!options_.unix_socket.empty()) {
    DWS_RETURN_IF_ERROR(ClearSocketPath(options_.unix_socket, SOCK_STREAM));
    builder.AddListeningPort("unix:" + options_.unix_socket, grpc::InsecureServerCredentials());
  }
  if (!options_.listen.empty()) {
    DWS_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(options_.listen));
    DWS_RETURN_IF_ERROR(CheckExposure(address, "--listen", options_.insecure));
    if (!address.IsLoopback()) {
      LogWarning("listening_insecure",
                 {{"address", options_.listen},
                  {"reason", "others can reach it, without encryption or authentication"}});
    }
    builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &tcp_port);
  }
  return OkStatus();
}

Status GrpcServer::Impl::Start() {
  DWS_CHECK(options_.lifecycle != nullptr);
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  int tcp_port = 0;
  DWS_RETURN_IF_ERROR(AddPorts(builder, tcp_port));
  SetLimits(builder);
  for (const NamedService& named : options_.services) builder.RegisterService(named.service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return UnavailableError(
        "cannot serve gRPC on socket \"{}\" and address \"{}\": does the folder exist, is the port "
        "free?",
        options_.unix_socket, options_.listen);
  }
  if (!options_.unix_socket.empty()) DWS_RETURN_IF_ERROR(RestrictSocket(options_.unix_socket));
  if (!options_.listen.empty()) port_ = static_cast<uint16_t>(tcp_port);

  listener_ = options_.lifecycle->AddListener([this](const Lifecycle::State& state) {
    grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
    for (const NamedService& named : options_.services) {
      health->SetServingStatus(named.name, state.ready);
    }
    health->SetServingStatus("", state.ready);
  });
  return OkStatus();
}

void GrpcServer::Impl::Shutdown(std::chrono::milliseconds grace) {
  MutexLock lock(mutex_);
  if (server_ == nullptr || shut_down_) return;
  shut_down_ = true;
  options_.lifecycle->RemoveListener(listener_);
  server_->GetHealthCheckService()->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const Options& options) {
  KeepGrpcRunning();
  auto impl = std::make_unique<Impl>(options);
  DWS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;
std::optional<uint16_t> GrpcServer::port() const { return impl_->port(); }
void GrpcServer::Shutdown(std::chrono::milliseconds grace) { impl_->Shutdown(grace); }

}  // namespace dws
