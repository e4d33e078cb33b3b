// Calls to one daemon's AdminService. The only part of dwsctl that uses gRPC.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <variant>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "proto/admin.pb.h"
#include "tools/dwsctl/client/daemon_target.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace dws::dwsctl {

// Ends a call in which another thread waits. Threads: safe from any.
class Hangup {
 public:
  // Ends the call in progress with CANCELLED, and every later one at once.
  void HangUp();
  // Ends only the call in progress.
  void EndCall();
  bool hung_up() const;

 private:
  friend class CallInProgress;
  mutable Mutex mutex_;
  grpc::ClientContext* call_ GUARDED_BY(mutex_) = nullptr;
  bool hung_up_ GUARDED_BY(mutex_) = false;
};

using OperationRequest =
    std::variant<v1::VerifyRequest, v1::ResyncRequest, v1::DrainRequest, v1::EvictRequest,
                 v1::ForgetStreamRequest, v1::AdminBoundaryRequest>;

// A client of one daemon. Lifecycle: connects with the first call, and again with a call after the
// connection was lost. Threads: safe from any.
class AdminClient {
 public:
  // INVALID_ARGUMENT: TLS files that cannot be used; the message names them.
  static Result<AdminClient> Create(const DaemonTarget& target, const TlsFlags& tls,
                                    std::chrono::milliseconds timeout);

  AdminClient(AdminClient&&) noexcept;
  AdminClient& operator=(AdminClient&&) noexcept;
  ~AdminClient();

  const DaemonTarget& target() const;

  // UNAVAILABLE: no daemon answers there. DEADLINE_EXCEEDED: no answer within the timeout.
  // Otherwise the daemon's error. Every message names the target and says what to check.
  Result<v1::StatusReply> FetchStatus();
  // Like the other FetchStatus. CANCELLED also by `hangup`.
  Result<v1::StatusReply> FetchStatus(Hangup& hangup);

  // Errors as FetchStatus. FAILED_PRECONDITION: the daemon has no plan; the message says why.
  Result<v1::PlanReply> FetchPlan();

  // Passes every status to `sink` until the call ends: with CANCELLED by `hangup`, otherwise with
  // an error of FetchStatus. There is no deadline for a silent daemon: the caller knows the
  // interval and hangs up.
  Status Watch(double interval_seconds, Hangup& hangup,
               const std::function<void(const v1::StatusReply&)>& sink);

  // Passes every message to `sink` until the daemon ends the call, or `sink` returns false, which
  // is OK. CANCELLED: by `hangup`. Otherwise as FetchStatus.
  Status Operate(const OperationRequest& request, Hangup& hangup,
                 const std::function<bool(const v1::OperationProgress&)>& sink);

 private:
  struct Connection;
  explicit AdminClient(std::unique_ptr<Connection> connection);

  std::unique_ptr<Connection> connection_;
};

// FindDaemon, then Create.
Result<AdminClient> ConnectDaemon(const TargetFlags& flags);

}  // namespace dws::dwsctl
