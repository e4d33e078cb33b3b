// The common part of all daemons: how they are reached, and what the main thread asks of them
// (daemon_loop.h). Three classes derive from Daemon and have the differences: the sender, the
// receiver, and the receiver that follows a folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/liveness.h"
#include "common/service/lifecycle.h"
#include "common/service/program/daemon_servers.h"
#include "common/service/security/credentials.h"
#include "common/service/security/tls_files.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// The options that say how a daemon is reached, and by whom.
struct DaemonOptions {
  std::string job_id;
  // Path of the unix socket for processes of this machine and the operator; descriptors go over
  // <socket>.handles.
  std::string socket;
  std::string listen;                    // gRPC for other machines and the operator; empty: none
  std::string http;                      // empty: none
  std::string ports_file;                // empty: none
  bool insecure = false;                 // TCP without TLS
  TlsFiles tls;                          // none: TCP without TLS
  std::vector<std::string> allow_users;  // names or uids (unix_socket.h)
};

// Lifecycle: a daemon serves from its start function until Stop. Threads: one, except as stated.
class Daemon {
 public:
  virtual ~Daemon();

  // Stops the daemon. Work in progress may take `grace`; memory and files are consistent however it
  // ends. A second call does nothing.
  virtual void Stop(std::chrono::milliseconds grace) = 0;
  // Ends the grace of a Stop that runs on another thread.
  virtual void EndGrace() = 0;
  // Returns an error if this process can never work again but a new one may; OK: it can work.
  // Threads: safe from any.
  virtual Status broken() const { return OkStatus(); }
  // Called about every second until Stop, for what changes with time alone, even while other
  // threads hang. Threads: safe from any.
  virtual void Tick() {}
  // Work for which a restart is better than being stuck. Valid as long as the daemon.
  virtual std::vector<WatchedWork> VitalWork() const = 0;

  // The status that operators see. Call it before Stop. Threads: safe from any.
  v1::StatusReply status() const { return servers_->status(); }
  // Reads the TLS files again; after an error the old ones stay in use. OK without TLS. Threads:
  // safe from any.
  Status ReloadCredentials();

 protected:
  explicit Daemon(DaemonOptions reached) : reached_(std::move(reached)) {}

  // Reads the list of users and the TLS files, whose certificate must have the identity. Call it
  // first.
  Status LoadSecurity(std::vector<Identity> identities);
  struct Served {
    AdminOperations& operations;
    Metrics& metrics;
    // See DaemonServers.
    DaemonServers::Services local = {};
    DaemonServers::Services remote = {};
    std::vector<std::string> plain_peers = {};
  };
  // Starts the servers. What they use outlives the call of CloseServers.
  Status StartServers(Served served);
  // Writes the ports file, if there is one; the gRPC port has the key `grpc_name`. `others`: of
  // listeners besides the servers.
  Status WritePorts(const std::string& grpc_name, std::map<std::string, uint16_t> others = {});
  uint16_t grpc_port() const { return servers_->grpc_port(); }  // 0: not open
  uint16_t http_port() const { return servers_->http_port(); }  // 0: not open

  // Logs the change too, to not ready as a warning. Call it when it has changed.
  void ShowReadiness(bool ready, const std::string& reason);

  // The three steps of ending the servers: operators' calls, all gRPC calls, the pages. They do
  // nothing if the servers have not started. A destructor calls CloseServers before the parts that
  // the servers use are destroyed.
  void StopOperators();
  void ShutdownServers();
  void CloseServers() { servers_.reset(); }

  const RealClock clock_;
  PosixFileSystem files_;
  Lifecycle lifecycle_;
  std::shared_ptr<Credentials> credentials_;  // null: plain
  AllowedUsers allowed_users_;

 private:
  const DaemonOptions reached_;
  std::unique_ptr<DaemonServers> servers_;
};

}  // namespace dws
