// A sender's Welcome, checked: from a Sync stream, a shared directory, or the stream between two
// senders.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/sync_state/subscription_state.h"
#include "proto/sync.pb.h"

namespace dws {

// `self`: what this process is, for messages. UNIMPLEMENTED: another protocol.
// FAILED_PRECONDITION: another job than `job_id`, or other tensors than those of `view` (as in
// Hello). INVALID_ARGUMENT, DATA_LOSS: the message makes no sense.
Result<SenderWelcome> ParseWelcome(const v1::Welcome& message, const std::string& job_id,
                                   const std::string& view = {},
                                   std::string_view self = "this receiver");

}  // namespace dws
