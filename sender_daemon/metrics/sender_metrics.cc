#include "sender_daemon/metrics/sender_metrics.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace dws {
namespace {

// The label of a block mode. Bytes outside block payloads (headers, indexes, the manifest) have
// their own label, so that the sum over all labels is the number of transferred bytes.
std::string Encoding(size_t mode) {
  if (mode == static_cast<size_t>(BlockMode::kEmpty)) return "framing";
  std::string name(ToString(static_cast<BlockMode>(mode)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

template <size_t... kMode>
std::array<Counter, sizeof...(kMode)> WireBytes(Metrics& metrics, std::index_sequence<kMode...>) {
  return {metrics.AddCounter("dws_sender_wire_bytes_total",
                             "Bytes of published deltas by the encoding of their blocks.",
                             {{"encoding", Encoding(kMode)}})...};
}

Counter ServedBytes(Metrics& metrics, const std::string& kind) {
  return metrics.AddCounter(
      "dws_sender_served_bytes_total",
      "Bytes sent to receivers: deltas, several squashed into one, full tensors, and full "
      "tensors that had to be copied because the snapshot had moved on.",
      {{"kind", kind}});
}

Counter FullVersions(Metrics& metrics, FullCause cause) {
  return metrics.AddCounter("dws_sender_full_versions_total",
                            "Versions published as full tensors, without a delta: the first of a "
                            "snapshot, as the trainer "
                            "asked for it, or because a delta would have been about as large.",
                            {{"cause", std::string(ToString(cause))}});
}

Histogram StageSeconds(Metrics& metrics, const std::string& stage) {
  return metrics.AddHistogram(
      "dws_sender_stage_seconds",
      "Time of each version by stage; versions on GPUs also have compare, lists, check and copy.",
      buckets::kStallSeconds, {{"stage", stage}});
}

Counter GpuBlocks(Metrics& metrics, const std::string& how) {
  return metrics.AddCounter("dws_sender_gpu_blocks_total",
                            "Blocks of captured weights on GPUs: compared there, or copied whole.",
                            {{"how", how}});
}

}  // namespace

SenderMetrics::SenderMetrics(const std::string& job_id, uint32_t trainer_rank)
    : registry_({{"dws_job", job_id}, {"trainer_rank", std::to_string(trainer_rank)}}),
      publish_seconds_(registry_.AddHistogram(
          "dws_sender_publish_seconds",
          "The trainer's stall: from the arrival of Publish to its reply, whatever the outcome.",
          buckets::kStallSeconds)),
      capture_seconds_(registry_.AddHistogram("dws_sender_capture_seconds",
                                              "Passes over the trainer's memory, for each version.",
                                              buckets::kStallSeconds)),
      view_capture_seconds_(registry_.AddHistogram(
          "dws_sender_view_capture_seconds",
          "Capturing all views that are followed, for each version; the trainer waits for it.",
          buckets::kStallSeconds)),
      seal_seconds_(registry_.AddHistogram("dws_sender_seal_seconds",
                                           "Making a delta object of a captured version.",
                                           buckets::kStageSeconds)),
      stage_seconds_{StageSeconds(registry_, "compare"), StageSeconds(registry_, "lists"),
                     StageSeconds(registry_, "check"),   StageSeconds(registry_, "copy"),
                     StageSeconds(registry_, "encode"),  StageSeconds(registry_, "seal")},
      ack_seconds_(registry_.AddHistogram(
          "dws_sender_ack_seconds",
          "From a version's announcement to a receiver until it had committed that version.",
          buckets::kStageSeconds)),
      published_versions_(
          registry_.AddCounter("dws_sender_published_versions_total", "Versions published.")),
      published_elements_(registry_.AddCounter("dws_sender_published_elements_total",
                                               "Elements of all published deltas' weights.")),
      changed_elements_(registry_.AddCounter("dws_sender_changed_elements_total",
                                             "Elements that published deltas change.")),
      full_bytes_(registry_.AddCounter(
          "dws_sender_full_bytes_total",
          "Size that all published deltas would have had as full tensors, in bytes.")),
      dense_bytes_(registry_.AddCounter(
          "dws_sender_dense_bytes_total",
          "Bytes of published deltas' blocks that are of groups which change nearly everywhere.")),
      full_versions_{FullVersions(registry_, FullCause::kFirst),
                     FullVersions(registry_, FullCause::kAsked),
                     FullVersions(registry_, FullCause::kDense)},
      gpu_compared_blocks_(GpuBlocks(registry_, "compared")),
      gpu_copied_blocks_(GpuBlocks(registry_, "copied")),
      listed_blocks_(registry_.AddCounter(
          "dws_sender_listed_blocks_total",
          "Blocks of captured weights whose changes the trainer itself has listed.")),
      wire_bytes_(WireBytes(registry_, std::make_index_sequence<kBlockModes>())),
      served_bytes_{ServedBytes(registry_, "delta"), ServedBytes(registry_, "squash"),
                    ServedBytes(registry_, "full"), ServedBytes(registry_, "full_copied")},
      nacks_(registry_, "dws_sender_nacks_total", "Versions that receivers refused, by reason."),
      verify_mismatches_(registry_.AddCounter(
          "dws_sender_verify_mismatches_total",
          "Slices of the snapshot that a Verify found to differ from what was published.")),
      view_versions_left_out_(registry_.AddCounter(
          "dws_sender_view_versions_left_out_total",
          "Versions that a view has left out, because other ranks' amax came too late.")) {}

void SenderMetrics::OnPublishReply(Duration stall) { publish_seconds_.Observe(ToSeconds(stall)); }

void SenderMetrics::OnPublished(const RankState& state, const RetainedVersion& version) {
  published_versions_.Increment();
  capture_seconds_.Observe(version.capture_seconds);
  seal_seconds_.Observe(version.stages.seal);
  const CaptureSeconds& stages = version.stages;
  const std::array<double, 6> seconds = {stages.compare, stages.lists,  stages.check,
                                         stages.copy,    stages.encode, stages.seal};
  for (size_t i = 0; i < seconds.size(); ++i) stage_seconds_[i].Observe(seconds[i]);
  gpu_compared_blocks_.Increment(static_cast<double>(version.compared_blocks));
  gpu_copied_blocks_.Increment(static_cast<double>(version.copied_blocks));
  listed_blocks_.Increment(static_cast<double>(version.listed_blocks));
  if (!version.base.has_value()) {
    DWS_CHECK(version.full != FullCause::kNone);
    full_versions_[static_cast<size_t>(version.full) - 1].Increment();
    return;
  }
  DWS_CHECK(version.nnz <= state.layout().element_count());
  published_elements_.Increment(static_cast<double>(state.layout().element_count()));
  changed_elements_.Increment(static_cast<double>(version.nnz));
  full_bytes_.Increment(static_cast<double>(state.layout().size_bytes()));
  dense_bytes_.Increment(static_cast<double>(version.density.dense_bytes));
  for (size_t mode = 1; mode < kBlockModes; ++mode) {
    wire_bytes_[mode].Increment(static_cast<double>(version.payload_bytes[mode]));
  }
  const uint64_t payload =
      std::accumulate(version.payload_bytes.begin(), version.payload_bytes.end(), uint64_t{0});
  DWS_CHECK(payload <= version.object.size());
  wire_bytes_[0].Increment(static_cast<double>(version.object.size() - payload));
  wire_bytes_[static_cast<size_t>(BlockMode::kClassSplit)].Increment(
      static_cast<double>(version.split_payload_bytes));
}

void SenderMetrics::OnViewsCaptured(Duration time) {
  view_capture_seconds_.Observe(ToSeconds(time));
}

void SenderMetrics::OnAcknowledged(Duration since_announced) {
  ack_seconds_.Observe(ToSeconds(since_announced));
}

void SenderMetrics::OnServed(ServedKind kind, uint64_t bytes) {
  served_bytes_[static_cast<size_t>(kind)].Increment(static_cast<double>(bytes));
}

void SenderMetrics::OnNack(uint32_t code) { nacks_.Increment(code); }

void SenderMetrics::OnVerifyMismatches(uint64_t slices) {
  verify_mismatches_.Increment(static_cast<double>(slices));
}

}  // namespace dws
