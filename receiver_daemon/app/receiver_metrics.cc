#include "receiver_daemon/app/receiver_metrics.h"

namespace dws {

ReceiverMetrics::ReceiverMetrics(const std::string& job_id, const std::string& receiver_id)
    : registry_({{"dws_job", job_id}, {"receiver_id", receiver_id}}),
      fetch_seconds_(registry_.AddHistogram("dws_receiver_fetch_seconds",
                                            "Fetching a version, of the slowest trainer rank.",
                                            buckets::kStageSeconds)),
      stage_seconds_(registry_.AddHistogram(
          "dws_receiver_stage_seconds",
          "Verifying and staging a fetched version, of the slowest trainer rank.",
          buckets::kStageSeconds)),
      commit_seconds_(registry_.AddHistogram(
          "dws_receiver_commit_seconds", "Intent, pause, write, resume.", buckets::kStageSeconds)),
      pause_seconds_(registry_.AddHistogram(
          "dws_receiver_pause_seconds", "How long a commit stopped an engine that was generating.",
          buckets::kStallSeconds)) {
  for (size_t i = 0; i < kVersionStages; ++i) {
    version_seconds_.push_back(registry_.AddHistogram(
        "dws_receiver_version_seconds",
        "Time of a version by stage, from its announcement until the senders know of its commit.",
        buckets::kStallSeconds, {{"stage", NameOf(static_cast<VersionStage>(i))}}));
  }
}

void ReceiverMetrics::OnCommit(const CommitReport& report) {
  fetch_seconds_.Observe(ToSeconds(report.fetch));
  stage_seconds_.Observe(ToSeconds(report.stage));
  commit_seconds_.Observe(ToSeconds(report.commit));
  // An engine that was already paused did not stop for this commit alone.
  if (report.pause > Duration::zero()) pause_seconds_.Observe(ToSeconds(report.pause));
  for (size_t i = 0; i < kVersionStages; ++i) {
    const bool known = static_cast<VersionStage>(i) != VersionStage::kAcknowledge;
    if (known) version_seconds_[i].Observe(ToSeconds(report.times.spent[i]));
  }
}

void ReceiverMetrics::OnAcknowledged(Duration took) {
  version_seconds_[static_cast<size_t>(VersionStage::kAcknowledge)].Observe(ToSeconds(took));
}

}  // namespace dws
