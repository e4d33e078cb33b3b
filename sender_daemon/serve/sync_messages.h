// The messages in which a Sync stream reports a rank's state to a receiver. For sync_stream.h.
#pragma once

#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// The identity of this rank, and its layout.
void FillWelcome(const RankState& state, v1::Welcome& welcome);

// Fills in the versions that it can serve now, and the newest delta itself if that is small.
void FillAnnounce(const RankState& state, v1::Announce& announce);

// Fills in the version that is being captured now, if it may be fetched already. `deltas`: includes
// deltas.
void FillReplacing(const RankState& state, bool deltas, v1::Replacing& replacing);

}  // namespace dws
