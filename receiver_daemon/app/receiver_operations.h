// An operator's operations on a receiver; see admin_operations.h. Passes requests to the worker,
// which does the work, and progress back.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/service/grpc/admin_operations.h"
#include "common/service/history/recent_items.h"
#include "common/service/lifecycle.h"
#include "common/service/peers/receiver_name.h"
#include "common/service/program/store_flags.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/peers/peer_server.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/host/host_share.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/operator_requests.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

// Lifecycle: all references must outlive it. Threads: safe from any.
class ReceiverOperations final : public AdminOperations {
 public:
  struct Parts {
    const Lifecycle& lifecycle;
    const Subscription& subscription;
    const EngineRegistry& registry;
    const SourceChain& sources;
    Worker& worker;
    OperatorRequests& requests;
    const Clock& clock;
    const RecentItems<v1::CommittedVersion>& history;
    CommitGroup* group = nullptr;             // null: in no group
    const SyncLinks* broadcasts = nullptr;    // null: takes part in no broadcasts
    const HostShare* host_share = nullptr;    // null: shares nothing with other receivers
    const s3::S3FileSystem* store = nullptr;  // null: there is none
    const PeerServer* peers = nullptr;        // null: serves no other receivers
    // The view that it follows; empty: the trainer's own tensors.
    std::string view;
  };

  ReceiverOperations(ReceiverName name, Parts parts);

  void FillStatus(v1::StatusReply& reply) const override;
  Result<v1::PlanReply> Plan() const override;
  // FAILED_PRECONDITION: no version to compare with. ABORTED: the engine attached again meanwhile.
  Status Verify(const Sink& progress) override;
  Status Resync(const v1::ResyncRequest& request, const Sink& progress) override;
  // ABORTED: another caller asked for the opposite meanwhile.
  Status Drain(const v1::DrainRequest& request, const Sink& progress) override;
  Status Evict(const v1::EvictRequest& request, const Sink& progress) override;
  // Returns after the stream is durably forgotten and the engine is paused.
  Status ForgetStream(const v1::ForgetStreamRequest& request, const Sink& progress) override;
  Status Boundary(const Sink& progress) override;

 private:
  // Reports progress until the task has ended. CANCELLED: the caller hung up.
  Status Follow(OperatorTask& task, const Sink& progress) const;

  const ReceiverName name_;
  const Parts parts_;
  const TimePoint started_;
};

}  // namespace dws
