// Fills rows of the status when versions are published and committed, so that a status only copies.
#include "sender_daemon/app/version_history.h"

#include <algorithm>
#include <chrono>

namespace dws {

void FillStages(const CaptureSeconds& seconds, v1::CaptureStages& stages) {
  stages.set_compare(seconds.compare);
  stages.set_lists(seconds.lists);
  stages.set_check(seconds.check);
  stages.set_copy(seconds.copy);
  stages.set_encode(seconds.encode);
  stages.set_seal(seconds.seal);
}

std::optional<double> DensityOf(const RankState& state, const RetainedVersion& version) {
  if (!version.base.has_value() && version.full != FullCause::kDense) return std::nullopt;
  const auto elements = static_cast<double>(state.layout().element_count());
  return static_cast<double>(version.nnz) / std::max(elements, 1.0);
}

void VersionHistory::OnPublished(const RankState& state, const RetainedVersion& version) {
  const std::chrono::duration<double> now = clock_.Now().time_since_epoch();
  v1::PublishedVersion row;
  row.set_version(version.version.value());
  row.set_unix_seconds(now.count());
  row.set_full_bytes(state.layout().size_bytes());
  row.set_wire_bytes(version.wire_bytes(row.full_bytes()));
  if (const auto density = DensityOf(state, version); density.has_value()) {
    row.set_density_ratio(*density);
  }
  row.set_capture_seconds(version.capture_seconds);
  FillStages(version.stages, *row.mutable_stages());
  versions_.Add(std::move(row));
}

void VersionHistory::OnCommitted(const AcknowledgedCommit& report) {
  if (report.fetched_bytes == 0 && report.stage_seconds == 0 && report.pause_seconds == 0) return;
  const uint64_t version = report.version.value();
  versions_.ChangeWhile([&](v1::PublishedVersion& row) {
    if (row.version() == version) {
      row.set_commits(row.commits() + 1);
      row.set_pause_seconds_max(std::max(row.pause_seconds_max(), report.pause_seconds));
      row.set_stage_seconds_max(std::max(row.stage_seconds_max(), report.stage_seconds));
    }
    return row.version() > version;  // lower numbers are older, or of an earlier stream
  });
}

void VersionHistory::Fill(v1::SenderStatus& status) const {
  for (v1::PublishedVersion& row : versions_.All()) *status.add_history() = std::move(row);
}

}  // namespace dws
