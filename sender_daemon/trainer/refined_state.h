// The state of a rank in a finer layout.
#pragma once

#include <chrono>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/trainer/cuts_file.h"

namespace dws {

class SharedSenderLedger;

// How long the trainer's calls may wait for versions that are being sealed.
inline constexpr Duration kSealWait = std::chrono::seconds(2);
// From a refinement that failed to the next attempt.
inline constexpr Duration kRefineRetryDelay = std::chrono::seconds(10);

// What a refinement uses.
struct RefineParts {
  ThreadPool& pool;
  SharedSenderLedger& ledger;
  CutsFile* cuts;  // null: a restart forgets the cuts
  DeltaLogLimits log_limits;
};

// The registered layout, with the cuts that an earlier process made in its stream, if they fit.
RankLayout CutAsBefore(const CutsFile* cuts, const StreamId& stream, const RankLayout& declared);

// `state` in layout `finer` (Refined of its layout): the newest version alone, under a higher rank
// epoch; cuts and epoch are recorded. UNAVAILABLE: a captured version is not recorded yet. Errors:
// as RefinedSnapshot, CutsFile::Save and the ledger's.
Result<RankStatePtr> RefinedState(const RankState& state, RankLayout finer,
                                  const RefineParts& parts);

}  // namespace dws
