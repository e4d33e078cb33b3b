// The part of a session that cuts its layout finer. Everything that can fail comes before the state
// is replaced.
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/refined_snapshot.h"
#include "sender_daemon/trainer/cuts_file.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {
namespace {

// How long the trainer's calls may wait for versions that are being sealed.
constexpr Duration kSealWait = std::chrono::milliseconds(200);
// From a refinement that failed to the next attempt.
constexpr Duration kRetryDelay = std::chrono::seconds(10);

}  // namespace

RankLayout TrainerSession::CutAsBefore(const Registration& registration) const {
  if (parts_.cuts == nullptr) return registration.layout;
  const CutWishes cuts = parts_.cuts->Load(registration.stream);
  Result<RankLayout> finer = Refined(registration.layout, cuts);
  if (finer.ok() && CheckReadable(*finer).ok()) return *std::move(finer);
  LogWarning("cuts_lost", {{"reason", "they do not fit what the trainer declares"}});
  return registration.layout;
}

Status TrainerSession::CheckRefine(const StreamId& stream, const CutWishes& wishes) const {
  if (state_ == nullptr || state_->stream != stream) return OkStatus();  // asked of an earlier one
  CutWishes lacking = Lacking(state_->layout(), wishes);
  if (lacking.empty()) return OkStatus();
  Merge(lacking, wishes_);
  DWS_ASSIGN_OR_RETURN(const RankLayout finer, Refined(state_->layout(), lacking));
  DWS_RETURN_IF_ERROR(CheckReadable(finer));
  if (live_.has_value() && live_->registration.ring.has_value() &&
      !live_->registration.ring->follows_refinement) {
    return FailedPreconditionError(
        "trainer rank {} hands tensors over by a client of an older release, which cannot follow: "
        "restart it with the client of this one, or declare the cuts",
        state_->trainer_rank.value());
  }
  return CheckMemoryFor(*state_->snapshot);
}

Status TrainerSession::Refine(const StreamId& stream, const CutWishes& wishes) {
  if (state_ == nullptr || state_->stream != stream) return OkStatus();
  const CutWishes lacking = Lacking(state_->layout(), wishes);
  if (lacking.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(CheckRefine(stream, lacking));
  if (live_.has_value() && live_->open_version != nullptr) {
    Merge(wishes_, lacking);
    return OkStatus();
  }
  if (parts_.clock->Now() < refine_again_at_) {
    return UnavailableError("a refinement failed a moment ago and is tried again later");
  }
  const TimePoint began = parts_.clock->Now();
  const Status refined = RefineNow(lacking);
  if (!refined.ok()) {
    refine_again_at_ = parts_.clock->Now() + kRetryDelay;
    return refined;
  }
  LogInfo("layout_refined", {{"stream", ToString(stream)},
                             {"tensors", lacking.size()},
                             {"slices", state_->layout().slice_count()},
                             {"rank_epoch", state_->rank_epoch.value()},
                             {"seconds", ToSeconds(parts_.clock->Now() - began)}});
  parts_.on_refined(state_);
  return OkStatus();
}

Status TrainerSession::RefineNow(const CutWishes& lacking) {
  DWS_ASSIGN_OR_RETURN(RankLayout finer, Refined(state_->layout(), lacking));
  std::unique_ptr<ResidentSource> resident;
  if (live_.has_value() && live_->resident != nullptr) {
    DWS_ASSIGN_OR_RETURN(resident, live_->resident->For(finer, live_->registration.places));
  }
  DWS_RETURN_IF_ERROR(parts_.pipeline->Drain(kSealWait));
  if (parts_.cuts != nullptr) {
    CutWishes cuts;
    for (const Shard& shard : finer.shards()) {
      if (!shard.tensor.cuts.empty()) Merge(cuts, shard.tensor.name, shard.tensor.cuts);
    }
    DWS_RETURN_IF_ERROR(parts_.cuts->Save(state_->stream, cuts));
  }
  DWS_ASSIGN_OR_RETURN(RankStatePtr refined, RefinedState(std::move(finer)));
  if (resident != nullptr) live_->resident = std::move(resident);
  state_ = std::move(refined);
  return OkStatus();
}

Result<RankStatePtr> TrainerSession::RefinedState(RankLayout finer) {
  const RetainedVersionPtr newest = state_->log->Newest();
  const std::optional<WeightVersion> captured = state_->snapshot->version();
  if (captured.has_value() && (newest == nullptr || newest->version != *captured)) {
    return UnavailableError("version {} is not recorded yet", captured->value());
  }
  DWS_ASSIGN_OR_RETURN(auto snapshot,
                       RefinedSnapshot(*state_->snapshot, std::move(finer), *parts_.pool));
  auto log = std::make_shared<DeltaLog>(snapshot->layout(), options_.log_limits);
  if (newest != nullptr) {
    log->Append(Restated(*newest, snapshot->layout().signature(), snapshot->digests()));
  }
  const RankEpoch epoch = parts_.ledger->state().NextEpoch(state_->stream);
  DWS_RETURN_IF_ERROR(
      parts_.ledger->Append(StreamOpened{.stream = state_->stream, .rank_epoch = epoch}));
  DWS_KILLPOINT("sender.refine.after_record");
  return std::make_shared<const RankState>(RankState{.stream = state_->stream,
                                                     .trainer_rank = state_->trainer_rank,
                                                     .world_size = state_->world_size,
                                                     .rank_epoch = epoch,
                                                     .declared = state_->declared,
                                                     .snapshot = std::move(snapshot),
                                                     .log = std::move(log)});
}

void TrainerSession::RefineLater() {
  if (wishes_.empty()) return;
  const bool posted = parts_.executor->Post([this] {
    if (wishes_.empty() || state_ == nullptr) return;
    const Status refined = Refine(state_->stream, std::exchange(wishes_, {}));
    // The receivers that still lack it ask again, and hear why.
    if (!refined.ok()) LogWarning("layout_not_refined", {{"reason", Message(refined)}});
  });
  if (!posted) LogWarning("layout_not_refined", {{"reason", "too many calls wait"}});
}

}  // namespace dws
