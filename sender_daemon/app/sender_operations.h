// The operations that a sender offers to operators; see admin_operations.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/admin_operations.h"
#include "common/service/lifecycle.h"
#include "common/transport/fabric/fabric_host.h"
#include "sender_daemon/app/version_history.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/serve/peer_directory.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/trainer/drain_switch.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {

// Lifecycle: all references must outlive it. Threads: safe from any.
class SenderOperations final : public AdminOperations {
 public:
  struct Names {
    std::string job_id;
    uint32_t trainer_rank = 0;
    DeltaLogLimits log_limits;
  };
  struct Parts {
    const Lifecycle& lifecycle;
    ReceiverHub& hub;
    const TrainerSession& session;
    const PublishPipeline& pipeline;
    const Clock& clock;
    SenderMetrics& metrics;
    DrainSwitch& drain;
    std::function<void()> on_drain;                        // after the switch was turned
    std::function<std::optional<PlaceFailure>()> failure;  // SenderReadiness::Failure
    const VersionSinks& sinks;
    const FabricHost& fabric;
    const VersionHistory& history;
    const PeerDirectory* peers = nullptr;  // null: receivers do not serve each other
    // Calls TrainerSession::ForgetStream, and also stops serving that stream.
    std::function<Status(const StreamId&)> forget_stream;
  };

  SenderOperations(Names names, Parts parts);

  void FillStatus(v1::StatusReply& reply) const override;
  // Checks the current snapshot. Differences are counted, and the next version that brings the
  // whole slice corrects them (snapshot.h).
  Status Verify(const Sink& progress) override;
  // FAILED_PRECONDITION: only receivers can be resynchronised.
  Status Resync(const v1::ResyncRequest& request, const Sink& progress) override;
  // ABORTED: another caller undid the drain meanwhile.
  Status Drain(const v1::DrainRequest& request, const Sink& progress) override;
  // Evicts an absent receiver. NOT_FOUND, FAILED_PRECONDITION: see proto/admin.proto.
  Status Evict(const v1::EvictRequest& request, const Sink& progress) override;
  Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& progress) override;

 private:
  // Returns in words what a drain is still waiting for; empty: nothing.
  std::string Remaining() const;
  v1::OperationProgress DrainProgress(std::string step) const;
  void FillState(const RankState& state,
                 const std::map<std::string, AnnouncerState::Receiver>& receivers,
                 v1::SenderStatus& sender) const;

  const Names names_;
  const Parts parts_;
  const TimePoint started_;
  Mutex mutex_;
  CondVar drain_changed_;
};

}  // namespace dws
