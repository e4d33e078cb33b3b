#include "common/service/program/daemon_servers.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/service/http/http_pages.h"
#include "common/service/http/https_context.h"
#include "common/service/listen_address.h"
#include "common/service/metrics/service_metrics.h"
#include "common/service/metrics/status_metrics.h"
#include "common/service/security/tls_status.h"

namespace dws {
namespace {

// The parts that use TCP without TLS, as flag and address. Pages on loopback are left out, because
// they cannot change anything.
std::vector<std::string> InsecureParts(const DaemonServers::Options& options) {
  std::vector<std::string> parts = options.plain_peers;
  if (options.credentials != nullptr) return parts;
  if (!options.listen.empty()) parts.push_back(fmt::format("--listen {}", options.listen));
  const Result<ListenAddress> http = ParseListenAddress(options.http);
  if (http.ok() && !http->IsLoopback()) parts.push_back(fmt::format("--http {}", options.http));
  return parts;
}

void WarnOf(const std::vector<std::string>& insecure) {
  for (const std::string& part : insecure) {
    LogWarning("insecure",
               {{"what", part},
                {"reason",
                 "TCP without TLS, allowed by --insecure: peers are not authenticated, and "
                 "everybody who reaches or takes the port can read or forge weights"}});
  }
}

}  // namespace

Result<std::unique_ptr<DaemonServers>> DaemonServers::Start(Options options, Parts parts,
                                                            Services local, Services remote) {
  const std::shared_ptr<Credentials> credentials = options.credentials;
  const std::vector<std::string> insecure = InsecureParts(options);
  std::unique_ptr<DaemonServers> servers(new DaemonServers);
  servers->admin_ = std::make_unique<AdminService>(
      parts.operations, parts.clock,
      AdminService::Options{
          .fill_tls = [credentials](v1::TlsStatus& tls) { FillTlsStatus(credentials.get(), tls); },
          .insecure = insecure});
  AddServiceMetrics(parts.metrics);
  parts.metrics.OnCollect([admin = servers->admin_.get()](Scrape& scrape) {
    WriteStatusMetrics(admin->Status(), scrape);
  });
  local.push_back({.name = "dws.v1.AdminService", .service = servers->admin_->AddServer()});
  DWS_ASSIGN_OR_RETURN(servers->local_, GrpcServer::Start({.unix_socket = options.socket,
                                                           .allowed_users = options.allowed_users,
                                                           .listen = "",
                                                           .services = std::move(local),
                                                           .lifecycle = &parts.lifecycle}));
  if (!options.listen.empty()) {
    remote.push_back({.name = "dws.v1.AdminService", .service = servers->admin_->AddServer()});
    DWS_ASSIGN_OR_RETURN(servers->remote_, GrpcServer::Start({.unix_socket = "",
                                                              .listen = options.listen,
                                                              .insecure = options.insecure,
                                                              .credentials = credentials,
                                                              .job_id = options.job_id,
                                                              .services = std::move(remote),
                                                              .lifecycle = &parts.lifecycle}));
  }
  if (!options.http.empty()) {
    DWS_ASSIGN_OR_RETURN(
        servers->http_,
        HttpEndpoint::Listen({.address = options.http,
                              .insecure = options.insecure,
                              .tls = MakeHttpsContextSource(credentials, options.job_id)},
                             DaemonPages(parts.lifecycle, parts.metrics,
                                         [admin = servers->admin_.get()](v1::StatusReply& reply) {
                                           reply = admin->Status();
                                         })));
  }
  WarnOf(insecure);
  return servers;
}

DaemonServers::~DaemonServers() = default;

uint16_t DaemonServers::grpc_port() const {
  return remote_ == nullptr ? uint16_t{0} : remote_->port().value_or(0);
}
uint16_t DaemonServers::http_port() const { return http_ == nullptr ? uint16_t{0} : http_->port(); }
std::map<std::string, uint16_t> DaemonServers::ports(const std::string& grpc_name) const {
  std::map<std::string, uint16_t> open;
  if (remote_ != nullptr) open[grpc_name] = grpc_port();
  if (http_ != nullptr) open["http"] = http_port();
  return open;
}
v1::StatusReply DaemonServers::status() const { return admin_->Status(); }
void DaemonServers::StopOperators() { admin_->Stop(); }

void DaemonServers::Shutdown() {
  local_->Shutdown(limits::kCallGrace);
  if (remote_ != nullptr) remote_->Shutdown(limits::kCallGrace);
}

}  // namespace dws
