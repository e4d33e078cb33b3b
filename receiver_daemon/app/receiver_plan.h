// What an attached engine takes from which trainer rank: the answer of the Plan call. Pure.
#pragma once

#include "receiver_daemon/engine/engine_registry.h"

namespace dws::v1 {
class PlanReply;
}  // namespace dws::v1

namespace dws {

// Fills in everything but the names of job and receiver.
void FillPlan(const AttachedEngine& engine, v1::PlanReply& reply);

}  // namespace dws
