// The receiver's part of the status reply.
#pragma once

#include <string>

#include "proto/admin.pb.h"
#include "receiver_daemon/engine_registry.h"
#include "receiver_daemon/subscription.h"
#include "receiver_daemon/worker.h"

namespace dws {

void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        v1::ReceiverStatus& status);

}  // namespace dws
