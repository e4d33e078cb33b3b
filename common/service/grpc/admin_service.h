// dws.v1.AdminService on top of AdminOperations. Carries an operator's calls and the answers,
// limits their number, and fills in the parts of the status that are the same for both daemons.
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

// Lifecycle: create it before the servers, call Stop before their shutdown, destroy it after them.
// `operations` and `clock` must outlive it. Threads: safe from any.
class AdminService {
 public:
  struct Options {
    std::function<void(v1::TlsStatus&)> fill_tls;  // empty: no TLS. Must not block
    std::vector<std::string> insecure = {};        // as in the status
  };

  AdminService(AdminOperations& operations, const Clock& clock, Options options);
  ~AdminService();

  // Returns a service object for one server; each server needs a separate one. Call it before Stop,
  // on one thread.
  grpc::Service* AddServer();

  // The whole reply of the Status call; the HTTP endpoint shows it too.
  v1::StatusReply Status() const;

  // Ends the watches, makes every operation's sink return false and waits until the operations have
  // returned. Later calls are UNAVAILABLE. Idempotent.
  void Stop();

 private:
  class Impl;
  class Server;
  std::unique_ptr<Impl> impl_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace dws
