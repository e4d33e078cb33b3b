// dws-receiver as an object: makes the parts, wires them, takes them down in order. No flags, no
// signals.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/pulse.h"
#include "common/base/status.h"
#include "common/model/delta_profile.h"
#include "common/model/limits.h"
#include "common/service/security/tls_files.h"
#include "proto/admin.pb.h"

namespace dws {

struct ReceiverOptions {
  std::string job_id;
  std::string receiver_id;
  std::vector<std::string> senders;               // "host:port"
  std::string socket = "/run/dws/receiver.sock";  // and <socket>.handles
  std::string listen = "127.0.0.1:0";             // operators
  std::string http = "127.0.0.1:0";
  std::string state_dir = "/var/lib/dws/receiver";
  std::string ports_file;  // empty: none
  bool insecure = false;   // listen beyond loopback
  uint64_t staging_bytes = limits::kStagingBytesDefault;
  size_t threads = 1;  // besides the worker
  ProfileChoice profile = ProfileChoice::kAuto;
  TlsFiles tls;                 // none: plain
  std::string tls_server_name;  // expected in senders' certificates; empty: the host dialled
  std::vector<std::string> allow_users;  // names or uids (unix_socket.h)
};

// Lifecycle: serves from Start until Stop or the destructor. Threads: one.
class ReceiverApp {
 public:
  // INVALID_ARGUMENT: an option, by its flag. Else what the parts return.
  static Result<std::unique_ptr<ReceiverApp>> Start(const ReceiverOptions& options);
  ~ReceiverApp();

  uint16_t admin_port() const;
  uint16_t http_port() const;

  // Ends a commit under way first: one that waits for the engine gets `grace`, one that writes ends
  // what it writes. Engines go on with the version they have.
  void Stop(std::chrono::milliseconds grace);
  // While Stop runs on another thread: its grace is over.
  void EndGrace();

  // As an operator sees it. Before Stop. Threads: safe from any.
  v1::StatusReply status() const;
  // What the watchdog watches; valid as long as the app.
  std::vector<WatchedWork> VitalWork() const;

  // Reads the TLS files again; on an error those of before stay in use. OK without TLS. Threads:
  // safe from any.
  Status ReloadCredentials();

 private:
  class Impl;
  explicit ReceiverApp(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
