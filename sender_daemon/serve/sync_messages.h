// The messages in which a Sync stream reports a rank's state to a receiver. For sync_stream.h.
#pragma once

#include "common/base/status.h"
#include "common/model/refinement.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// The identity of this rank, and its layout.
void FillWelcome(const RankState& state, v1::Welcome& welcome);

// What it can serve now, and the newest delta itself if it is small.
void FillAnnounce(const RankState& state, v1::Announce& announce);

// What a receiver wants to have cut. INVALID_ARGUMENT: tensors, dimensions or boundaries do not
// ascend, or there are more than limits allow.
Result<CutWishes> ParseCuts(const v1::Refine& message);

}  // namespace dws
