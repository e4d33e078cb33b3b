// The daemons' gRPC server: a unix socket, a TCP address or both, server reflection, grpc.health.v1
// that follows the lifecycle, and the limits of limits.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/limits.h"
#include "common/service/lifecycle.h"
#include "common/service/security/credentials.h"
#include "common/service/sockets/unix_socket.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace dws {

// Lifecycle: serves from Start until Shutdown or the destructor (which calls Shutdown).
// Threads: safe from any.
class GrpcServer {
 public:
  struct NamedService {
    std::string name;                  // "dws.v1.TrainerService", for grpc.health.v1
    grpc::Service* service = nullptr;  // not owned
  };

  struct Options {
    std::string unix_socket;          // path of a socket file, mode 0660; empty: none
    AllowedUsers allowed_users = {};  // users who may connect to the socket file
    std::string listen;               // "127.0.0.1:0"; empty: none
    bool insecure = false;            // allows `listen` without TLS, but refuses orders there
    // TLS on `listen`, loopback included; callers need roles in this job (access.h). Null: no TLS.
    std::shared_ptr<Credentials> credentials = nullptr;
    std::string job_id = "";
    std::vector<NamedService> services;
    Lifecycle* lifecycle = nullptr;  // not owned; health is SERVING exactly while it is ready
  };

  // Services and lifecycle outlive the server. A service object may belong to one server only.
  // INVALID_ARGUMENT: neither address is given, or one cannot be parsed. FAILED_PRECONDITION: an
  // address without TLS and without `insecure`, or a socket file in use. UNAVAILABLE: cannot bind.
  static Result<std::unique_ptr<GrpcServer>> Start(const Options& options);

  ~GrpcServer();

  // Returns the TCP port, if it listens on one.
  std::optional<uint16_t> port() const;

  // Refuses new calls, gives calls in progress `grace` to end, then cancels the others and returns
  // when all handlers have returned. A peer on the socket file that does not read is cut off soon
  // after `grace`. Health is NOT_SERVING from the beginning. Idempotent.
  void Shutdown(std::chrono::milliseconds grace = limits::kShutdownGrace);

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
