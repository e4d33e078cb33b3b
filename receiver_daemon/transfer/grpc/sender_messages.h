// A sender's messages, checked: from a Sync stream or a shared directory; and answers to them.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/sync_state/subscription_state.h"
#include "proto/sync.pb.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// UNIMPLEMENTED: another protocol. FAILED_PRECONDITION: another job than `job_id`, or other tensors
// than those of `view` (as in Hello). INVALID_ARGUMENT, DATA_LOSS: the message makes no sense.
Result<SenderWelcome> ParseWelcome(const v1::Welcome& message, const std::string& job_id,
                                   const std::string& view = {});

// Says that a version is refused. `nonce` is that of the announcement that offered it.
v1::SyncUp NackMessage(const VersionAt& version, uint64_t nonce, const Rejection& rejection);

v1::Refine RefineMessage(const CutOrder& order);

}  // namespace dws
