// The receiver's part of the status reply.
#pragma once

#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/transfer/grpc/full_ways.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

// `full_ways`: by sender; none where there are no connections.
void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        const std::vector<FullWays::View>& full_ways, TimePoint now,
                        v1::ReceiverStatus& status);

void FillGroupStatus(const CommitGroup& group, v1::GroupStatus& status);

}  // namespace dws
