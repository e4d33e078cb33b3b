// The messages in which a Sync stream reports a rank's state to a receiver. For sync_stream.h.
#pragma once

#include <cstdint>

#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// The identity of this rank, and its layout.
void FillWelcome(const RankState& state, v1::Welcome& welcome);

// What it can serve now, and the newest delta itself if it is small.
void FillAnnounce(const RankState& state, v1::Announce& announce);

// The version that is being captured now, if a receiver of this release may fetch it already.
void FillReplacing(const RankState& state, uint32_t protocol_minor, v1::Replacing& replacing);

}  // namespace dws
