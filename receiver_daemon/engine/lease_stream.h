// The receiver's end of one lease stream: turns messages into calls of its EngineLease and commands
// into messages.
#pragma once

#include <memory>

#include "common/model/limits.h"
#include "common/service/grpc/server_stream.h"
#include "proto/engine.grpc.pb.h"
#include "receiver_daemon/engine/engine_lease.h"
#include "receiver_daemon/engine/engine_registry.h"

namespace dws {

// Lifecycle: owns itself until its end; its lease shares it. When the stream ends it ends the
// registration: an engine rank without a lease has to attach again. Threads: gRPC's and the
// worker's.
class LeaseStream final : public ServerStream<v1::LeaseUp, v1::LeaseDown>,
                          public std::enable_shared_from_this<LeaseStream> {
 public:
  static LeaseStream* Start(EngineRegistry& registry);

 private:
  explicit LeaseStream(EngineRegistry& registry)
      : ServerStream("the engine", limits::kLeaseQueueMax), registry_(registry) {}
  Status OnMessage(const v1::LeaseUp& message) override;
  void OnEnd(const Status& reason) override;
  Status HandleOpen(const v1::LeaseOpen& open);
  Status HandleCommitRequest(const v1::CommitRequest& message);

  EngineRegistry& registry_;
  std::shared_ptr<EngineLease> lease_;  // used only by the reactions, one at a time
};

}  // namespace dws
