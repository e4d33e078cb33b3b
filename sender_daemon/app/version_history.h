// The figures of the versions that were published last, as the status and its page show them.
#pragma once

#include <optional>

#include "common/base/wall_clock.h"
#include "common/service/history/recent_items.h"
#include "common/sync_state/announcer_state.h"
#include "proto/admin.pb.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/publish/retained_version.h"

namespace dws {

void FillStages(const CaptureSeconds& seconds, v1::CaptureStages& stages);

// Returns how many elements the version changed, of all; nullopt: it was compared with none.
std::optional<double> DensityOf(const RankState& state, const RetainedVersion& version);

// Threads: safe from any. `clock` must outlive it.
class VersionHistory {
 public:
  explicit VersionHistory(const WallClock& clock) : clock_(clock) {}

  void OnPublished(const RankState& state, const RetainedVersion& version);
  // A receiver has committed a version of the current stream. Ignored if it is no longer kept, and
  // if the receiver repeats an old report after it connected again: then it has no figures.
  void OnCommitted(const AcknowledgedCommit& report);
  void Fill(v1::SenderStatus& status) const;

 private:
  const WallClock& clock_;
  RecentItems<v1::PublishedVersion> versions_;
};

}  // namespace dws
