// One view of what the trainer publishes: its layout, its snapshot and its retained versions, kept up
// to date from the trainer's snapshot. A rank's state like the trainer's own, so that everything
// that serves a state serves a view.
#pragma once

#include <memory>
#include <span>
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
  // `name`: as quantise::ParseView. INVALID_ARGUMENT: as quantise::ViewLayout.
  // RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<std::unique_ptr<ViewSnapshot>> Create(const std::string& name, RankStatePtr trainer,
                                                      const DeltaLogLimits& limits);

  const RankStatePtr& state() const { return state_; }

  // Captures `version`, which the trainer's snapshot has, from it. `trainer` is what was captured there
  // since the view's version: a version with a base. Null, or one without: all is captured, as
  // always where the view has no version. No capture of the trainer's snapshot may run meanwhile.
  CapturedVersion CaptureVersion(WeightVersion version, const CapturedVersion* trainer,
                                 ThreadPool& pool);

 private:
  class Source;

  ViewSnapshot(RankStatePtr trainer, quantise::ViewLayout view, RankStatePtr state,
               std::vector<std::vector<uint16_t>> amax)
      : trainer_(std::move(trainer)),
        view_(std::move(view)),
        state_(std::move(state)),
        amax_(std::move(amax)) {}
  // Whether the trainer's slice may have had other bytes than its steps say.
  bool IsMended(RankSlice slice, const CapturedVersion& trainer) const;
  std::span<const EncodedBlock> StepsOf(RankSlice slice, const CapturedVersion& trainer) const;
  // `bytes`: of the view's slice.
  void CaptureWhole(RankSlice slice, ByteSpan bytes, Source& source, Capture& capture) const;
  // Brings the amax of all matrices up to date, after `trainer` (null: after anything). Whether they
  // moved, by view_.matrices().
  std::vector<bool> MoveMatrices(const CapturedVersion* trainer, ThreadPool& pool);
  // The scales of one of view_.matrices().
  void CaptureMatrixScales(size_t matrices, Source& source, Capture& capture);
  std::span<const uint16_t> MatrixAmax(const quantise::ViewLayout::Slice& slice) const;
  // `blocks`: of the trainer's slice, ascending.
  void CaptureSlice(const quantise::ViewLayout::Slice& slice, const std::vector<uint32_t>& blocks,
                    std::span<uint16_t> amax, ThreadPool& pool, Source& source, Capture& capture);

  const RankStatePtr trainer_;
  const quantise::ViewLayout view_;
  const RankStatePtr state_;
  std::vector<std::vector<uint16_t>> amax_;  // by view_.slices(): of their tiles
  // Where the recipe has one scale a matrix: by view_.slices(), of its own part of each matrix; by
  // view_.matrices(), of all that share the scale.
  std::vector<std::vector<uint16_t>> part_amax_;
  std::vector<std::vector<uint16_t>> matrix_amax_;
};

}  // namespace dws
