// One view of what the trainer publishes: its layout, its snapshot and its retained versions, kept
// up to date from the trainer's snapshot. A rank's state like the trainer's own, so that everything
// that serves a state serves a view.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/quantise/view.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/views/device_tiles.h"
#include "sender_daemon/views/matrix_amax.h"

namespace dws {

// Lifecycle: of one state of the trainer's rank. Threads: those of the trainer's calls, one at a
// time; what state() has may be used by any.
class ViewSnapshot {
 public:
  // `name`: as quantise::ParseView. `device`: of the same trainer's state; null: only the host
  // quantises. INVALID_ARGUMENT: as quantise::ViewLayout.
  // RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<std::unique_ptr<ViewSnapshot>> Create(
      const std::string& name, RankStatePtr trainer, const DeltaLogLimits& limits,
      std::shared_ptr<DeviceTiles> device = nullptr);

  const RankStatePtr& state() const { return state_; }

  // Returns whether other ranks have parts of matrices that have one scale.
  bool is_divided() const { return divided_; }
  const quantise::ViewLayout& view() const { return view_; }
  const RankState& trainer() const { return *trainer_; }

  // Measures the amax of matrices in the trainer's snapshot, which has `version`. `trainer` is the
  // version that was captured there since the last measurement; if it is null, has no base, or has
  // another one than that, everything is read.
  const MatrixAmax& Measure(WeightVersion version, const CapturedVersion* trainer,
                            ThreadPool& pool);

  // Captures `version` from the trainer's snapshot, which has that version. `trainer` is the
  // version that was captured there; if it is null, has no base, or has another one than the view's
  // newest version, or if the view has no version yet, everything is captured. No capture of the
  // trainer's snapshot may run meanwhile. `others`: what other ranks say of that version, if
  // is_divided(), after Measure.
  CapturedVersion CaptureVersion(WeightVersion version, const CapturedVersion* trainer,
                                 ThreadPool& pool, const MatrixAmax::Others* others = nullptr);

 private:
  class Source;

  ViewSnapshot(RankStatePtr trainer, quantise::ViewLayout view, RankStatePtr state,
               std::vector<std::vector<uint16_t>> amax, std::shared_ptr<DeviceTiles> device)
      : trainer_(std::move(trainer)),
        view_(std::move(view)),
        state_(std::move(state)),
        device_(std::move(device)),
        amax_(std::move(amax)),
        divided_(view_.DividedTensor(trainer_->layout()).has_value()) {}
  // Returns whether the trainer's slice may have had other bytes than its steps say.
  bool IsMended(RankSlice slice, const CapturedVersion& trainer) const;
  std::span<const EncodedBlock> StepsOf(RankSlice slice, const CapturedVersion& trainer) const;
  // `bytes`: of the view's slice.
  void CaptureWhole(RankSlice slice, ByteSpan bytes, Source& source, Capture& capture) const;
  // The steps of the trainer's slice; nullopt: it may have had other bytes than they say, or so
  // many elements changed that all are read.
  MatrixAmax::Steps Listable(RankSlice slice, const CapturedVersion& trainer) const;
  // Those of view_.slices(); all are nullopt if `steps` is false.
  std::vector<MatrixAmax::Steps> ListableSlices(bool steps, const CapturedVersion* trainer) const;
  // The scales of one of view_.matrices().
  void CaptureMatrixScales(size_t matrices, Source& source, Capture& capture);
  // `blocks`: of the trainer's slice, ascending.
  void CaptureSlice(const quantise::ViewLayout::Slice& slice, const std::vector<uint32_t>& blocks,
                    std::span<uint16_t> amax, ThreadPool& pool, Source& source, Capture& capture);

  const RankStatePtr trainer_;
  const quantise::ViewLayout view_;
  const RankStatePtr state_;
  const std::shared_ptr<DeviceTiles> device_;
  std::vector<std::vector<uint16_t>> amax_;  // by view_.slices(): of their tiles
  const bool divided_;
  MatrixAmax matrix_amax_{view_};
  std::optional<WeightVersion> measured_;  // by matrix_amax_
};

}  // namespace dws
