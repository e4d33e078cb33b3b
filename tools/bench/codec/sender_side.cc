#include "tools/bench/codec/sender_side.h"

#include <utility>

#include "common/base/check.h"
#include "sender_daemon/publish/publish_pipeline.h"

namespace dws::bench {
namespace {
constexpr DeltaLogLimits kLogLimits{.bytes_max = uint64_t{1} << 40, .versions_max = 1000};
}  // namespace

Result<std::unique_ptr<SenderSide>> SenderSide::Create(const Placement& placement) {
  DWS_ASSIGN_OR_RETURN(CreatedRegion created,
                       CreateHostRegion("bench-trainer", placement.size_bytes));
  DWS_ASSIGN_OR_RETURN(UniqueFd read_only, ReopenReadOnly(created.fd));
  DWS_ASSIGN_OR_RETURN(HostRegion region, HostRegion::Map(std::move(read_only),
                                                          placement.size_bytes, Access::kReadOnly));
  const ByteSpan bytes = region.bytes();
  DWS_ASSIGN_OR_RETURN(auto side, CreateFor(placement, std::move(region)));
  side->trainer_ = std::move(created.region);
  side->source_bytes_ = bytes;
  return side;
}

Result<std::unique_ptr<SenderSide>> SenderSide::CreateFor(const Placement& placement,
                                                          MappedRegion region, HostRegion lists) {
  std::unique_ptr<SenderSide> side(new SenderSide);
  std::vector<MappedRegion> regions;
  regions.push_back(std::move(region));
  regions.emplace_back(std::move(lists));
  DWS_ASSIGN_OR_RETURN(side->source_, ResidentSource::Create(placement.layout, std::move(regions),
                                                             placement.places));
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<Snapshot> snapshot, Snapshot::Create(placement.layout));
  side->state_ = std::make_shared<const RankState>(
      RankState{.stream = {.incarnation = 1, .id_hi = 1, .id_lo = 1},
                .trainer_rank = TrainerRank(0),
                .rank_epoch = RankEpoch(1),
                .snapshot = std::move(snapshot),
                .log = std::make_shared<DeltaLog>(placement.layout, kLogLimits)});
  return side;
}

// It has no RPC, ledger or receivers: it measures the path from memory to a delta object.
void SenderSide::Capture(ThreadPool& pool, DeltaProfile profile, FullCause full,
                         const dws::Capture::OnRead& on_read, std::vector<ListedShard> listed) {
  dws::Capture capture(snapshot(), pool, WeightVersion(++version_), profile, full);
  const TrainerLists lists{.region = 1, .shards = std::move(listed)};
  DWS_CHECK(CaptureResident(capture, *source_, snapshot(), pool, lists, on_read).ok());
  Result<CapturedVersion> captured = capture.Finish();
  DWS_CHECK(captured.ok());
  captured_ = *std::move(captured);
}

Result<std::unique_ptr<ViewSnapshot>> SenderSide::Follow(const std::string& view,
                                                         ThreadPool& pool) const {
  DWS_ASSIGN_OR_RETURN(auto followed, ViewSnapshot::Create(view, state_, kLogLimits));
  followed->CaptureVersion(*snapshot().version(), nullptr, pool);
  return followed;
}

RetainedVersionPtr SenderSide::Seal() {
  DWS_CHECK(captured_.has_value());
  RetainedVersionPtr sealed = dws::Seal({.state = state_, .captured = *std::move(captured_)});
  captured_.reset();
  return sealed;
}

}  // namespace dws::bench
