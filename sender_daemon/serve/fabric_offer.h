// How a sender's snapshot is lent over a fabric.
#pragma once

#include "common/base/status.h"
#include "common/transport/fabric/fabric_host.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lends the memory of `state`'s snapshot, and fills the answer to the receiver that asks. Errors:
// FabricHost::Lend's.
Status LendSnapshot(FabricHost& fabric, const RankState& state, v1::OpenFabricReply& reply);

}  // namespace dws
