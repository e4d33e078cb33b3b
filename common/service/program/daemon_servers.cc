#include "common/service/program/daemon_servers.h"

#include <utility>

#include "common/model/limits.h"
#include "common/service/http/http_pages.h"
#include "common/service/http/https_context.h"
#include "common/service/metrics/service_metrics.h"
#include "common/service/security/tls_status.h"

namespace dws {

Result<std::unique_ptr<DaemonServers>> DaemonServers::Start(Options options, Parts parts,
                                                            Services local, Services remote) {
  const std::shared_ptr<Credentials> credentials = options.credentials;
  AddServiceMetrics(parts.metrics, {.lifecycle = &parts.lifecycle,
                                    .draining = std::move(parts.draining),
                                    .certificate_expiry = [credentials] {
                                      return CertificateExpiry(credentials.get());
                                    }});
  std::unique_ptr<DaemonServers> servers(new DaemonServers);
  servers->admin_ = std::make_unique<AdminService>(
      parts.operations, parts.clock,
      AdminService::Options{.fill_tls = [credentials](v1::TlsStatus& tls) {
        FillTlsStatus(credentials.get(), tls);
      }});
  local.push_back({.name = "dws.v1.AdminService", .service = servers->admin_->AddServer()});
  DWS_ASSIGN_OR_RETURN(servers->local_, GrpcServer::Start({.unix_socket = options.socket,
                                                           .allowed_users = options.allowed_users,
                                                           .listen = "",
                                                           .services = std::move(local),
                                                           .lifecycle = &parts.lifecycle}));
  remote.push_back({.name = "dws.v1.AdminService", .service = servers->admin_->AddServer()});
  DWS_ASSIGN_OR_RETURN(servers->remote_, GrpcServer::Start({.unix_socket = "",
                                                            .listen = options.listen,
                                                            .insecure = options.insecure,
                                                            .credentials = credentials,
                                                            .job_id = options.job_id,
                                                            .services = std::move(remote),
                                                            .lifecycle = &parts.lifecycle}));
  DWS_ASSIGN_OR_RETURN(
      servers->http_,
      HttpEndpoint::Listen({.address = options.http,
                            .insecure = options.insecure,
                            .tls = MakeHttpsContextSource(credentials, options.job_id)},
                           DaemonPages(parts.lifecycle, parts.metrics,
                                       [admin = servers->admin_.get()](v1::StatusReply& reply) {
                                         reply = admin->Status();
                                       })));
  return servers;
}

DaemonServers::~DaemonServers() = default;

uint16_t DaemonServers::grpc_port() const { return remote_->port().value_or(0); }
uint16_t DaemonServers::http_port() const { return http_->port(); }
v1::StatusReply DaemonServers::status() const { return admin_->Status(); }
void DaemonServers::StopOperators() { admin_->Stop(); }

void DaemonServers::Shutdown() {
  local_->Shutdown(limits::kCallGrace);
  remote_->Shutdown(limits::kCallGrace);
}

}  // namespace dws
