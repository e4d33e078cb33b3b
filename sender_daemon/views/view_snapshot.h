// One view of what the trainer publishes: its layout, its snapshot and its retained versions, kept up
// to date from the trainer's snapshot. A rank's state like the trainer's own, so that everything
// that serves a state serves a view.
#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/quantise/view.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: of one state of the trainer's rank. Threads: those of the trainer's calls, one at a time;
// what state() has may be used by any.
class ViewSnapshot {
 public:
  // `name`: as quantise::ParseView. INVALID_ARGUMENT, UNIMPLEMENTED: as quantise::ViewLayout.
  // RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<std::unique_ptr<ViewSnapshot>> Create(const std::string& name, RankStatePtr trainer,
                                                      const DeltaLogLimits& limits);

  const RankStatePtr& state() const { return state_; }

  // Captures `version`, which the trainer's snapshot has, from it: what `changed` (by the trainer's
  // rank block number) says, or all of it, whatever `changed` is, if the view has no version. No capture of the trainer's
  // snapshot may run meanwhile.
  CapturedVersion CaptureVersion(WeightVersion version, const std::vector<bool>& changed,
                                 ThreadPool& pool);

 private:
  class Source;

  ViewSnapshot(RankStatePtr trainer, quantise::ViewLayout view, RankStatePtr state)
      : trainer_(std::move(trainer)), view_(std::move(view)), state_(std::move(state)) {}
  // The blocks of the trainer's slice that changed, ascending.
  std::vector<uint32_t> ChangedBlocks(RankSlice slice, const std::vector<bool>& changed,
                                      bool all) const;
  void CaptureSlice(const quantise::ViewLayout::Slice& slice, const std::vector<uint32_t>& blocks,
                    ThreadPool& pool, Source& source, Capture& capture);

  const RankStatePtr trainer_;
  const quantise::ViewLayout view_;
  const RankStatePtr state_;
};

}  // namespace dws
