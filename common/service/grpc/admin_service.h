// What an operator asks a daemon: dws.v1.AdminService over AdminOperations. Brings calls and
// answers, bounds them, and fills the parts of the status that are the same for both daemons.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/service/grpc/admin_operations.h"
#include "proto/admin.pb.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace dws {

// Lifecycle: made before the servers, Stop before their shutdown, destroyed after them.
// `operations` and `clock` outlive it. Threads: safe from any.
class AdminService {
 public:
  struct Options {
    std::function<void(v1::TlsStatus&)> fill_tls;  // none: no TLS. Must not block
    std::vector<std::string> insecure = {};        // as in the status
  };

  AdminService(AdminOperations& operations, const Clock& clock, Options options);
  ~AdminService();

  // The service for a server; each server needs its own. Before Stop, on one thread.
  grpc::Service* AddServer();

  // The whole reply, as Status answers it; for the HTTP endpoint too.
  v1::StatusReply Status() const;

  // Ends the watches, makes every operation's sink say false and waits until they have returned;
  // later calls are UNAVAILABLE. Again: nothing.
  void Stop();

 private:
  class Impl;
  class Server;
  std::unique_ptr<Impl> impl_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace dws
