// What a receiver answers a sender, over a Sync stream or in a shared directory.
#pragma once

#include "common/sync_state/subscription_state.h"
#include "proto/sync.pb.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// Says that a version is refused. `nonce` is that of the announcement that offered it.
v1::SyncUp NackMessage(const VersionAt& version, uint64_t nonce, const Rejection& rejection);

v1::Refine RefineMessage(const CutOrder& order);

}  // namespace dws
