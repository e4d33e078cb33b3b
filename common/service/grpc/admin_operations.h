// The operations of a daemon for operators: the interface between AdminService (proto/admin.proto),
// which carries calls and answers, and the daemon, which does the work.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws {

// Each daemon has one implementation. Threads: safe from any, several calls at a time.
class AdminOperations {
 public:
  // Sends a message to the caller. Returns false if the caller has hung up or the daemon is
  // stopping: then the operation must return. Never blocks: a newer message replaces an unsent one.
  using Sink = std::function<bool(const v1::OperationProgress&)>;

  virtual ~AdminOperations() = default;

  // Fills in everything except build_version, build, tls, insecure and unix_seconds, which
  // AdminService fills in for both daemons. Must not block.
  virtual void FillStatus(v1::StatusReply& reply) const = 0;

  // Must not wait. FAILED_PRECONDITION: see proto/admin.proto.
  virtual Result<v1::PlanReply> Plan() const {
    return FailedPreconditionError("only receivers have a plan: ask those of the job");
  }

  // Each blocks until the operation ends or the sink returns false, and calls `progress` at least
  // twice a second; the last message is `finished`. Work that continues after the caller hangs up
  // (admin.proto) runs in the background. FAILED_PRECONDITION: this daemon does not support the
  // operation, or not in its current state. UNAVAILABLE: the daemon is stopping. CANCELLED: the
  // sink returned false.
  virtual Status Verify(const Sink& progress) = 0;
  virtual Status Resync(const v1::ResyncRequest& request, const Sink& progress) = 0;
  virtual Status Drain(const v1::DrainRequest& request, const Sink& progress) = 0;
  virtual Status Evict(const v1::EvictRequest& request, const Sink& progress) = 0;
  virtual Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& progress) = 0;
  virtual Status Boundary(const Sink&) {
    return FailedPreconditionError(
        "this daemon holds no versions back: expected the --socket or --address of a receiver with "
        "--sender or --shared-dir");
  }
};

}  // namespace dws
