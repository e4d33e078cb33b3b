#include "common/service/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_runtime.h"
#include "common/service/listen_address.h"
#include "common/service/sockets/unix_listener.h"

namespace dws {
namespace {

// RFC 9113 §3.4: the first bytes that every client sends.
constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// These are process-wide switches of the library: servers built later have both services.
void EnableHealthAndReflection() {
  static const bool once = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(once);
}

// `local`: only clients of this host, on a socket file.
void SetLimits(grpc::ServerBuilder& builder, bool local) {
  using std::chrono::milliseconds;
  const auto interval = static_cast<int>(milliseconds(limits::kKeepaliveInterval).count());
  const auto timeout = static_cast<int>(milliseconds(limits::kKeepaliveTimeout).count());
  builder.SetMaxReceiveMessageSize(limits::kGrpcMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kGrpcMessageBytesMax);
  // A ping goes out after `interval` of silence, and its answer may take the rest of `timeout`. So
  // a hung peer counts as absent after `timeout`.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, interval);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout - interval);
  // The kernel reports when a client of a socket file ends; it matters that a client hangs only
  // while it has a call. Without a call, gRPC in Python reads only a piece every 5 s, from one of a
  // process's channels at a time: a trainer that computes would be cut off, and its next call would
  // fail.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, local ? 0 : 1);
  // Clients ping too; the default treats more than one ping in five minutes as an attack.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, interval / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits::kGrpcStreamsMax);
  // Covers the TLS handshake and the HTTP/2 preface. A slower client is disconnected.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(milliseconds(limits::kHandshakeTimeout).count()));
  // With SO_REUSEPORT, two daemons with the same port would both start and share the clients.
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
  Status AddPort(grpc::ServerBuilder& builder, int& tcp_port) const;
  Status ListenLocally();

  const Options options_;
  std::optional<uint16_t> port_;
  Lifecycle::ListenerId listener_;
  Mutex mutex_;
  bool shut_down_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<UnixListener> local_;  // hands connections to server_
};

Status GrpcServer::Impl::AddPort(grpc::ServerBuilder& builder, int& tcp_port) const {
  if (options_.listen.empty()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(options_.listen));
  if (options_.credentials != nullptr) {
    builder.AddListeningPort(address.ToString(),
                             MakeServerCredentials(options_.credentials, options_.job_id),
                             &tcp_port);
    return OkStatus();
  }
  DWS_RETURN_IF_ERROR(CheckPlainListener(address, options_.insecure));
  builder.AddListeningPort(address.ToString(), MakePlainServerCredentials(), &tcp_port);
  return OkStatus();
}

// UnixListener accepts the connections, because gRPC neither checks the user nor limits the number
// of connections.
Status GrpcServer::Impl::ListenLocally() {
  if (options_.unix_socket.empty()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(local_, UnixListener::Listen({.path = options_.unix_socket,
                                                     .allowed = options_.allowed_users,
                                                     .first_bytes = kHttp2Preface.size(),
                                                     .on_connection = [this](UniqueFd fd) {
                                                       grpc::AddInsecureChannelFromFd(server_.get(),
                                                                                      fd.release());
                                                     }}));
  return OkStatus();
}

Status GrpcServer::Impl::Start() {
  DWS_CHECK(options_.lifecycle != nullptr);
  if (options_.unix_socket.empty() && options_.listen.empty()) {
    return InvalidArgumentError("a gRPC server needs a socket path or an address to listen on");
  }
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  int tcp_port = 0;
  DWS_RETURN_IF_ERROR(AddPort(builder, tcp_port));
  SetLimits(builder, options_.listen.empty());
  for (const NamedService& named : options_.services) builder.RegisterService(named.service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return UnavailableError("cannot serve gRPC on address \"{}\": is the port free?",
                            options_.listen);
  }
  DWS_RETURN_IF_ERROR(ListenLocally());
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
  if (local_ != nullptr) local_->StopAccepting();
  // gRPC closes a connection only after the write in progress. A peer that reads nothing (a stopped
  // process) keeps that write waiting for ever. TCP gives up by its user timeout; a unix socket
  // never does, so its descriptor is shut down underneath the write.
  std::promise<void> ended;
  std::thread cutter([this, grace, over = ended.get_future()] {
    const bool late = over.wait_for(grace + limits::kCallGrace) == std::future_status::timeout;
    if (late && local_ != nullptr) local_->Stop();
  });
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  ended.set_value();
  cutter.join();
  if (local_ != nullptr) local_->Stop();
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
