// The servers of a daemon: gRPC on a unix socket for processes of this machine and, if configured,
// gRPC on an address for others and the HTTP pages. Both gRPC servers offer AdminService beside the
// daemon's services.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/service/grpc/admin_operations.h"
#include "common/service/grpc/admin_service.h"
#include "common/service/grpc/grpc_server.h"
#include "common/service/http/http_endpoint.h"
#include "common/service/lifecycle.h"
#include "common/service/metrics/metrics.h"
#include "common/service/security/credentials.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// Lifecycle: serves from Start until the destructor. Call StopOperators and Shutdown before you
// destroy what the services use. Threads: status from any; the others one at a time.
class DaemonServers {
 public:
  struct Options {
    std::string job_id;
    std::string socket;  // path of the unix socket
    AllowedUsers allowed_users;
    std::string listen;  // gRPC for others; empty: none
    std::string http;    // empty: none
    bool insecure = false;
    std::shared_ptr<Credentials> credentials;  // null: no TLS
    // Peers that the daemon dials over plain TCP: "--sender 10.0.0.5:7700".
    std::vector<std::string> plain_peers = {};
  };
  // All of them must outlive the servers.
  struct Parts {
    AdminOperations& operations;
    Lifecycle& lifecycle;
    Metrics& metrics;  // gets those that every daemon has, and those of the status
    const Clock& clock;
  };
  using Services = std::vector<GrpcServer::NamedService>;

  // `local` are for the unix socket, `remote` for the address. Parts that use TCP without TLS are
  // reported in the log, the status and the metrics. Errors as GrpcServer::Start and
  // HttpEndpoint::Listen.
  static Result<std::unique_ptr<DaemonServers>> Start(Options options, Parts parts, Services local,
                                                      Services remote);
  ~DaemonServers();

  // 0: the port is not open.
  uint16_t grpc_port() const;
  uint16_t http_port() const;
  // The open ports, for WritePortsFile; the gRPC port has the key `grpc_name`.
  std::map<std::string, uint16_t> ports(const std::string& grpc_name) const;
  // The status that operators see.
  v1::StatusReply status() const;

  // Ends operators' calls; later ones are UNAVAILABLE. Idempotent.
  void StopOperators();
  // Refuses new calls and gives running ones limits::kCallGrace. Pages are served until the
  // destructor.
  void Shutdown();

 private:
  DaemonServers() = default;

  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<GrpcServer> local_;
  std::unique_ptr<GrpcServer> remote_;  // null: no address
  std::unique_ptr<HttpEndpoint> http_;  // null: no pages
};

}  // namespace dws
