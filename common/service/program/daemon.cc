#include "common/service/program/daemon.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/service/ports_file.h"

namespace dws {

// The servers use parts of the derived class, which are destroyed by now.
Daemon::~Daemon() { DWS_CHECK(servers_ == nullptr); }

Status Daemon::LoadSecurity(std::vector<Identity> identities) {
  DWS_ASSIGN_OR_RETURN(allowed_users_, AllowedUsers::Parse(reached_.allow_users));
  if (!reached_.tls.given()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(
      credentials_, Credentials::Load({.files = reached_.tls, .required = std::move(identities)}));
  return OkStatus();
}

Status Daemon::ReloadCredentials() {
  return credentials_ == nullptr ? OkStatus() : credentials_->Reload();
}

Status Daemon::StartServers(Served served) {
  DWS_CHECK(servers_ == nullptr);
  DWS_ASSIGN_OR_RETURN(servers_,
                       DaemonServers::Start({.job_id = reached_.job_id,
                                             .socket = reached_.socket,
                                             .allowed_users = allowed_users_,
                                             .listen = reached_.listen,
                                             .http = reached_.http,
                                             .insecure = reached_.insecure,
                                             .credentials = credentials_,
                                             .plain_peers = std::move(served.plain_peers)},
                                            {.operations = served.operations,
                                             .lifecycle = lifecycle_,
                                             .metrics = served.metrics,
                                             .clock = clock_},
                                            std::move(served.local), std::move(served.remote)));
  return OkStatus();
}

Status Daemon::WritePorts(const std::string& grpc_name, std::map<std::string, uint16_t> others) {
  if (reached_.ports_file.empty()) return OkStatus();
  others.merge(servers_->ports(grpc_name));
  return WritePortsFile(files_, reached_.ports_file, others);
}

void Daemon::ShowReadiness(bool ready, const std::string& reason) {
  if (ready) {
    LogInfo("readiness", {{"ready", true}, {"reason", reason}});
    lifecycle_.SetReady();
  } else {
    LogWarning("readiness", {{"ready", false}, {"reason", reason}});
    lifecycle_.SetNotReady(reason);
  }
}

void Daemon::StopOperators() {
  if (servers_ != nullptr) servers_->StopOperators();
}

void Daemon::ShutdownServers() {
  if (servers_ != nullptr) servers_->Shutdown();
}

}  // namespace dws
