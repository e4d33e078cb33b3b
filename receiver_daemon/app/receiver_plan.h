// What an attached engine takes from which trainer rank, and where it waits for its commit: the
// answer of the Plan call. Pure.
#pragma once

#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/worker/worker_status.h"

namespace dws::v1 {
class PlanReply;
}  // namespace dws::v1

namespace dws {

// Fills in everything but the names of job and receiver.
void FillPlan(const AttachedEngine& engine, const WorkerStatus& worker, v1::PlanReply& reply);

}  // namespace dws
