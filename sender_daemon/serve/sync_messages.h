// What a Sync stream tells a receiver of a rank's state, as messages. For sync_stream.h.
#pragma once

#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Who this rank is, and its layout.
void FillWelcome(const RankState& state, v1::Welcome& welcome);

// What it can serve now; the newest delta itself where it is small.
void FillAnnounce(const RankState& state, v1::Announce& announce);

}  // namespace dws
