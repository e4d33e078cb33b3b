// The receiver's part of the status reply, which its metrics are read from too.
#pragma once

#include <string>

#include "common/sources/source_chain.h"
#include "proto/admin.pb.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/host/host_share.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

// Returns the figures of a commit that the status keeps.
v1::CommittedVersion HistoryRow(const CommitReport& report);

void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        const SourceChain& sources, TimePoint now, v1::ReceiverStatus& status);

void FillBroadcasts(const SyncLinks::Broadcasts& totals, v1::ReceivedBroadcasts& status);

void FillHostShare(const HostShare::Totals& totals, v1::HostShareStatus& status);

void FillGroupStatus(const CommitGroup& group, v1::GroupStatus& status);

}  // namespace dws
