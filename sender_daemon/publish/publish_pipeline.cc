#include "sender_daemon/publish/publish_pipeline.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/delta/objects/object.h"
#include "common/delta/objects/object_writer.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::chrono::milliseconds kRetryDelay{500};
// Builds the object of the slices that a version changed. Slices in `framed`, ascending, already
// have their frames; the others are made from the captured blocks. `other`: uses the frames of the
// other profile.
std::vector<std::byte> BuildObject(const RankLayout& layout, const DeltaManifest& identity,
                                   const CapturedVersion& captured,
                                   std::span<const FramedSlice> framed, bool other) {
  DWS_CHECK(captured.blocks.size() == layout.block_count());
  DWS_CHECK(captured.before.size() == layout.slice_count() &&
            captured.after.size() == layout.slice_count());
  DWS_CHECK(captured.class_tables.empty() || captured.class_tables.size() == layout.slice_count());
  ObjectWriter writer;
  uint64_t bytes = 0;
  for (const FramedSlice& slice : framed) bytes += slice.Of(other)->bytes.size();
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    bytes += ObjectWriter::EstimateBytes(
        std::span(captured.blocks).subspan(slice.first_block, slice.blocks));
  }
  writer.Reserve(bytes);
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const SliceEnd end{
        .slice = RankSlice(s),
        .before = captured.before[s],
        .after = captured.after[s],
        .classes = captured.class_tables.empty() ? std::nullopt : captured.class_tables[s]};
    const bool is_framed = !framed.empty() && framed.front().slice == RankSlice(s);
    const Status added =
        is_framed ? writer.AddSealed(end, *framed.front().Of(other))
                  : writer.AddSlice(
                        end, std::span(captured.blocks).subspan(slice.first_block, slice.blocks));
    DWS_CHECK(added.ok());  // in memory
    if (is_framed) framed = framed.subspan(1);
  }
  DWS_CHECK(framed.empty());
  return writer.Finish(identity);
}

// Builds the object of the other profile; empty if none of its blocks differs. Moves the blocks out
// of `captured`.
std::vector<std::byte> SealOther(const RankLayout& layout, const DeltaManifest& identity,
                                 CapturedVersion& captured, std::span<const FramedSlice> framed,
                                 uint64_t& split_bytes) {
  split_bytes = 0;
  if (captured.other_blocks.empty()) return {};
  DWS_CHECK(captured.other_blocks.size() == captured.blocks.size());
  bool differs = false;
  for (const FramedSlice& slice : framed) {  // slices with frames no longer have other blocks
    differs = differs || slice.other != nullptr;
    split_bytes += slice.split_bytes;
  }
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const auto relative = std::span(captured.blocks).subspan(slice.first_block, slice.blocks);
    const auto other = std::span(captured.other_blocks).subspan(slice.first_block, slice.blocks);
    if (!UsesOther(captured.other, relative, other)) continue;
    differs = true;
    split_bytes += ExchangeOther(relative, other);
    std::ranges::fill(other, EncodedBlock());
  }
  if (!differs) return {};
  return BuildObject(layout, identity, captured, framed, true);
}

// Logs one line for each group whose density changed, and one if the density of the version
// changed.
void LogDensity(const RetainedVersion& version) {
  const VersionDensity& density = version.density;
  for (const DensityTurn& turn : density.turns) {
    LogInfo(turn.dense ? "group_dense" : "group_sparse", {{"group", turn.group.name},
                                                          {"version", version.version.value()},
                                                          {"elements", turn.group.elements},
                                                          {"changed", turn.group.changed},
                                                          {"wire_bytes", turn.group.wire_bytes},
                                                          {"full_bytes", turn.group.full_bytes}});
  }
  if (density.turned) {
    LogInfo(density.dense ? "version_dense" : "version_sparse",
            {{"version", version.version.value()},
             {"dense_groups", density.dense_groups},
             {"wire_bytes", version.object.size()}});
  }
}

}  // namespace

RetainedVersionPtr Seal(SealJob job) {
  CapturedVersion& captured = job.captured;
  const RankLayout& layout = job.state->layout();
  auto sealed = std::make_shared<RetainedVersion>();
  sealed->stages = captured.seconds;
  const StageTime time(sealed->stages.seal);
  sealed->version = captured.version;
  sealed->base = captured.base;
  sealed->full = captured.full;
  sealed->nnz = captured.nnz;
  sealed->compared_blocks = captured.compared_blocks;
  sealed->copied_blocks = captured.copied_blocks;
  sealed->listed_blocks = captured.listed_blocks;
  sealed->density = std::move(captured.density);
  sealed->capture_seconds = job.capture_seconds;
  sealed->accepted_at = job.accepted_at;
  sealed->manifest = {.stream = job.state->stream,
                      .trainer_rank = job.state->trainer_rank,
                      .version = captured.version,
                      .base_version = captured.base.value_or(WeightVersion(0)),
                      .layout_signature = layout.signature(),
                      .state_token = StateToken(captured.after)};
  sealed->payload_bytes = captured.payload_bytes;
  if (captured.base.has_value()) {
    const std::vector<FramedSlice> framed =
        captured.open_delta == nullptr ? std::vector<FramedSlice>() : captured.open_delta->Slices();
    sealed->object = BuildObject(layout, sealed->manifest, captured, framed, false);
    auto header = ParseObjectHeader(sealed->object);
    auto manifest = ParseObjectManifest(sealed->object, layout);
    DWS_CHECK(header.ok() && manifest.ok());  // we built it a moment ago
    DWS_CHECK(manifest->version == captured.version && manifest->base_version == *captured.base &&
              manifest->state_token == sealed->manifest.state_token);
    DWS_CHECK(captured.nnz ==
              std::accumulate(manifest->slices.begin(), manifest->slices.end(), uint64_t{0},
                              [](uint64_t sum, const SliceDelta& s) { return sum + s.nnz; }));
    sealed->other = captured.other;
    sealed->other_object =
        SealOther(layout, sealed->manifest, captured, framed, sealed->split_payload_bytes);
    sealed->header = *header;
    sealed->manifest = *std::move(manifest);
  }
  sealed->after = std::move(captured.after);
  return sealed;
}

RetainedVersionPtr Restated(const RetainedVersion& version, const Digest& layout_signature,
                            std::vector<Digest> digests) {
  auto restated = std::make_shared<RetainedVersion>();
  restated->version = version.version;
  restated->capture_seconds = version.capture_seconds;
  restated->stages = version.stages;
  restated->accepted_at = version.accepted_at;
  restated->manifest = {.stream = version.manifest.stream,
                        .trainer_rank = version.manifest.trainer_rank,
                        .version = version.version,
                        .base_version = WeightVersion(0),
                        .layout_signature = layout_signature,
                        .state_token = StateToken(digests)};
  restated->after = std::move(digests);
  restated->former_tokens = version.former_tokens;
  restated->former_tokens.push_back(version.manifest.state_token);
  return restated;
}

PublishPipeline::PublishPipeline(Outputs outputs)
    : outputs_(std::move(outputs)), thread_([this] { Run(); }) {}

PublishPipeline::~PublishPipeline() { Stop(); }

Status PublishPipeline::Reserve(Duration timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!stopping_ && jobs_.size() >= limits::kSealBacklogMax) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      return ResourceExhaustedError("{} captured versions wait to be recorded: {}", jobs_.size(),
                                    trouble_.ok() ? "sealing is slow" : Message(trouble_));
    }
    changed_.WaitFor(mutex_, left);
  }
  if (stopping_) return UnavailableError("the sender is shutting down");
  return OkStatus();
}

void PublishPipeline::Submit(SealJob job) {
  MutexLock lock(mutex_);
  DWS_CHECK(jobs_.size() < limits::kSealBacklogMax);  // the one producer has reserved room
  jobs_.push_back(std::move(job));
  changed_.NotifyAll();
}

Status PublishPipeline::Drain(Duration timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!stopping_ && (busy_ || !jobs_.empty())) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      return DeadlineExceededError("captured versions still wait to be recorded: {}",
                                   trouble_.ok() ? "sealing is slow" : Message(trouble_));
    }
    changed_.WaitFor(mutex_, left);
  }
  return OkStatus();
}

bool PublishPipeline::idle() const {
  MutexLock lock(mutex_);
  return !busy_ && jobs_.empty();
}

void PublishPipeline::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void PublishPipeline::Run() {
  while (true) {
    SealJob job;
    {
      MutexLock lock(mutex_);
      busy_ = false;
      changed_.NotifyAll();
      while (!stopping_ && jobs_.empty()) changed_.Wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      changed_.NotifyAll();
    }
    if (!Process(std::move(job))) return;
  }
}

// False if stopped before the version was recorded.
bool PublishPipeline::Process(SealJob job) {
  const WorkScope work(&liveness_);
  const RankStatePtr state = job.state;
  std::vector<ViewJob> views = std::exchange(job.views, {});
  const TimePoint accepted_at = job.accepted_at;
  const std::shared_ptr<OpenDelta> open_delta = job.captured.open_delta;
  job.captured.DropFramed(state->layout());
  const RetainedVersionPtr sealed = Seal(std::move(job));
  DWS_KILLPOINT("sender.publish.after_seal");
  while (true) {
    liveness_.Beat();
    const Status recorded = outputs_.record(*state, *sealed);
    {
      MutexLock lock(mutex_);
      const bool changed = trouble_.ok() != recorded.ok();
      trouble_ = recorded;
      if (!recorded.ok() && stopping_) {
        if (open_delta != nullptr) open_delta->GiveUp();
        return false;
      }
      if (changed && !recorded.ok()) {
        LogError("publish_not_recorded",
                 {{"version", sealed->version.value()}, {"reason", Message(recorded)}});
      }
    }
    outputs_.on_trouble(recorded);
    if (recorded.ok()) break;
    MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, kRetryDelay);
  }
  DWS_KILLPOINT("sender.publish.after_record");
  state->log->Append(sealed);
  DWS_CHECK(state->log->Newest() == sealed);         // the announcement takes it from there
  if (open_delta != nullptr) open_delta->Publish();  // readers of the open delta go on in the log
  for (ViewJob& view : views) {
    view.state->log->Append(Seal(
        {.state = view.state, .captured = std::move(view.captured), .accepted_at = accepted_at}));
  }
  DWS_KILLPOINT("sender.publish.after_retain");
  if (outputs_.on_published) outputs_.on_published(*state, *sealed);
  LogInfo("published", {{"version", sealed->version.value()},
                        {"full", ToString(sealed->full)},
                        {"nnz", sealed->nnz},
                        {"wire_bytes", sealed->wire_bytes(state->layout().size_bytes())},
                        {"wan_bytes", sealed->other_bytes(DeltaProfile::kWan)},
                        {"direct_bytes", sealed->other_bytes(DeltaProfile::kDirect)},
                        {"full_bytes", state->layout().size_bytes()},
                        {"capture_ms", sealed->capture_seconds * 1e3},
                        {"seal_ms", sealed->stages.seal * 1e3}});
  LogDensity(*sealed);
  outputs_.announce(state);
  DWS_KILLPOINT("sender.publish.after_announce");
  return true;
}

}  // namespace dws
