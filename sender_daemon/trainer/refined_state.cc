// Cuts are recorded before they are made: a restart may make them without need, but takes none
// back.
#include "sender_daemon/trainer/refined_state.h"

#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "sender_daemon/capture/refined_snapshot.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/trainer/handover.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {
namespace {

Status SaveCuts(CutsFile& file, const StreamId& stream, const RankLayout& layout) {
  CutWishes cuts;
  for (const Shard& shard : layout.shards()) {
    if (!shard.tensor.cuts.empty()) Merge(cuts, shard.tensor.name, shard.tensor.cuts);
  }
  return file.Save(stream, cuts);
}

}  // namespace

RankLayout CutAsBefore(const CutsFile* cuts, const StreamId& stream, const RankLayout& declared) {
  if (cuts == nullptr) return declared;
  Result<RankLayout> finer = Refined(declared, cuts->Load(stream));
  if (finer.ok() && CheckReadable(*finer).ok()) return *std::move(finer);
  LogWarning("cuts_lost", {{"reason", "they do not fit what the trainer declares"}});
  return declared;
}

Result<RankStatePtr> RefinedState(const RankState& state, RankLayout finer,
                                  const RefineParts& parts) {
  const RetainedVersionPtr newest = state.log->Newest();
  const std::optional<WeightVersion> captured = state.snapshot->newest();
  if (captured.has_value() && !state.snapshot->version().has_value()) {
    return UnavailableError(
        "a full version was given up: the snapshot has no version until the next one");
  }
  if (captured.has_value() && (newest == nullptr || newest->version != *captured)) {
    return UnavailableError("version {} is not recorded yet", captured->value());
  }
  if (parts.cuts != nullptr) DWS_RETURN_IF_ERROR(SaveCuts(*parts.cuts, state.stream, finer));
  DWS_ASSIGN_OR_RETURN(auto snapshot,
                       RefinedSnapshot(*state.snapshot, std::move(finer), parts.pool));
  const bool begins = state.begins_stream && newest == state.log->First();
  auto log = std::make_shared<DeltaLog>(snapshot->layout(), parts.log_limits);
  if (newest != nullptr) {
    log->Append(Restated(*newest, snapshot->layout().signature(), snapshot->digests()));
  }
  const RankEpoch epoch = parts.ledger.state().NextEpoch(state.stream);
  DWS_RETURN_IF_ERROR(
      parts.ledger.Append(StreamOpened{.stream = state.stream, .rank_epoch = epoch}));
  DWS_KILLPOINT("sender.refine.after_record");
  return std::make_shared<const RankState>(RankState{.stream = state.stream,
                                                     .trainer_rank = state.trainer_rank,
                                                     .world_size = state.world_size,
                                                     .rank_epoch = epoch,
                                                     .begins_stream = begins,
                                                     .declared = state.declared,
                                                     .snapshot = std::move(snapshot),
                                                     .log = std::move(log)});
}

}  // namespace dws
