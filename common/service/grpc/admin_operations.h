// What an operator can make a daemon do: the seam between AdminService (proto/admin.proto), which
// brings calls and answers, and the daemon, which does the work.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws {

// One implementation a daemon. Threads: safe from any, several calls at a time.
class AdminOperations {
 public:
  // Hands a message to the caller; false when it hung up or the daemon is stopping, and the call is
  // to return. Never blocks: a newer message replaces an unsent one.
  using Sink = std::function<bool(const v1::OperationProgress&)>;

  virtual ~AdminOperations() = default;

  // The reply but for build, tls, insecure and unix_seconds, which are the same for both daemons.
  // Must not block.
  virtual void FillStatus(v1::StatusReply& reply) const = 0;

  // Each blocks until it is over or the sink says false, and tells `progress` at least twice a
  // second; the last message is `finished`. What goes on when the caller hangs up (admin.proto)
  // goes on behind the call. FAILED_PRECONDITION: not a thing this daemon does, or not now.
  // UNAVAILABLE: the daemon is stopping. CANCELLED: the sink said false.
  virtual Status Verify(const Sink& progress) = 0;
  virtual Status Resync(const v1::ResyncRequest& request, const Sink& progress) = 0;
  virtual Status Drain(const v1::DrainRequest& request, const Sink& progress) = 0;
  virtual Status Evict(const v1::EvictRequest& request, const Sink& progress) = 0;
  virtual Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& progress) = 0;
};

}  // namespace dws
