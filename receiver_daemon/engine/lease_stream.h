// The receiver's end of one lease stream: turns messages into calls of its EngineLease and commands
// into messages.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "common/base/threads/mutex.h"
#include "proto/engine.grpc.pb.h"
#include "receiver_daemon/engine/engine_lease.h"
#include "receiver_daemon/engine/engine_registry.h"

namespace dws {

// Lifecycle: owns itself until OnDone; its lease shares it. When the stream ends it ends the
// registration: an engine rank without a lease has to attach again. Threads: gRPC's and the
// worker's.
class LeaseStream final : public grpc::ServerBidiReactor<v1::LeaseUp, v1::LeaseDown> {
 public:
  static LeaseStream* Start(EngineRegistry& registry);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit LeaseStream(EngineRegistry& registry) : registry_(registry) {}
  Status HandleUp(const v1::LeaseUp& message);
  Status HandleOpen(const v1::LeaseOpen& open);
  Status HandleCommitRequest(EngineLease& held, const v1::CommitRequest& message);
  void Send(const LeaseCommand& command);
  // Both end the stream with `reason`: End after writing the queue, Close without.
  void End(const Status& reason);
  void Close(const Status& reason);
  // Starts the next write, or finishes the stream, unless one of these is already in progress.
  // Called without the lock.
  void Pump();
  std::shared_ptr<EngineLease> lease();

  EngineRegistry& registry_;
  std::shared_ptr<LeaseStream> self_;  // until OnDone
  v1::LeaseUp up_;
  v1::LeaseDown down_;  // in flight

  Mutex mutex_;
  std::shared_ptr<EngineLease> lease_ GUARDED_BY(mutex_);
  std::deque<v1::LeaseDown> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  std::optional<Status> close_reason_ GUARDED_BY(mutex_);
};

}  // namespace dws
