#include "sender_daemon/shared/shared_writer.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/clock_bound.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/transport/s3/store.h"
#include "common/transport/shared_fs/file_writer.h"
#include "common/transport/shared_fs/verified_file.h"
#include "common/transport/shared_fs/version_catalog.h"
#include "proto/shared_fs.pb.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/full_reader.h"
#include "sender_daemon/serve/sync_messages.h"
#include "sender_daemon/shared/shared_retirement.h"

namespace dws {
namespace {

std::string DescriptionOf(const RetainedVersion& version) {
  v1::DescribeReply description;
  for (const Digest& digest : version.after) *description.add_slices() = ToProto(digest);
  *description.mutable_state_token() = ToProto(StateToken(version.after));
  return description.SerializeAsString();
}

}  // namespace

Result<std::string> SharedRankFolder(const std::string& root, const std::string& job_id,
                                     TrainerRank rank) {
  DWS_ASSIGN_OR_RETURN(const std::string job, shared::EscapeId(job_id));
  return fmt::format("{}/{}/{}", root, job, shared::RankName(rank));
}

SharedWriter::SharedWriter(FileSystem& files, const Place& place, RankStatePtr state,
                           std::function<bool()> wanted, const WallClock& wall_clock)
    : files_(files),
      place_(place),
      state_(std::move(state)),
      wanted_(std::move(wanted)),
      wall_clock_(&wall_clock) {}

Status SharedWriter::Begin() {
  DWS_ASSIGN_OR_RETURN(rank_folder_,
                       SharedRankFolder(place_.root, place_.job_id, state_->trainer_rank));
  stream_folder_ = fmt::format("{}/{}", rank_folder_, shared::StreamName(state_->stream));
  return CheckFence();
}

Status SharedWriter::WriteWelcome() {
  DWS_RETURN_IF_ERROR(files_.MakeFolders(stream_folder_));
  v1::Welcome welcome;
  FillWelcome(*state_, welcome);
  welcome.set_job_id(place_.job_id);
  const std::string bytes = welcome.SerializeAsString();
  DWS_ASSIGN_OR_RETURN(
      welcome_, shared::WriteWhole(files_, stream_folder_, shared::WelcomeName(state_->rank_epoch),
                                   AsBytes(bytes)));
  return OkStatus();
}

Status SharedWriter::KeepWelcome(TimePoint now) {
  if (look_at_.has_value() && now >= *look_at_) {
    const bool whole = !IsStore(place_.root) || (looks_ + 1) % kWholeLookEvery == 0;
    const Status found = CheckWelcome(whole);
    if (absl::IsNotFound(found) || absl::IsDataLoss(found)) {
      // The sender that has replaced this one may have removed it.
      DWS_RETURN_IF_ERROR(CheckFence());
      DWS_RETURN_IF_ERROR(WriteWelcome());
      LogWarning("shared_welcome_rewritten", {{"reason", Message(found)}});
    }
    ++looks_;
  }
  if (!look_at_.has_value() || now >= *look_at_) look_at_ = now + kWelcomeInterval;
  return OkStatus();
}

Status SharedWriter::CheckWelcome(bool whole) const {
  if (whole) {
    return shared::ReadVerified(files_, stream_folder_, welcome_, welcome_.size_bytes).status();
  }
  const std::string path = fmt::format("{}/{}", stream_folder_, welcome_.name);
  DWS_ASSIGN_OR_RETURN(const auto file, files_.OpenForRead(path));
  std::byte last{};
  DWS_ASSIGN_OR_RETURN(const size_t read, file->ReadAt(welcome_.size_bytes - 1, {&last, 1}));
  if (read == 1) return OkStatus();
  return DataLossError("{} ends before the {} bytes that were written", path, welcome_.size_bytes);
}

Status SharedWriter::CheckFence() const {
  DWS_ASSIGN_OR_RETURN(const auto streams, shared::ListStreams(files_, rank_folder_));
  for (const StreamId& stream : streams) {
    if (stream.incarnation < state_->stream.incarnation || stream == state_->stream) continue;
    // No receiver accepts such a stream.
    if (!AheadOfClock(stream, wall_clock_->Now()).empty()) continue;
    return FailedPreconditionError(
        "{} has stream {}, this sender publishes {}: another trainer has taken over; stop one of "
        "them, or start this one with a higher incarnation. If `dwsctl forget-stream` reset that "
        "one: remove its folder",
        rank_folder_, ToString(stream), ToString(state_->stream));
  }
  DWS_ASSIGN_OR_RETURN(const auto versions, shared::ListVersions(files_, stream_folder_));
  for (const shared::VersionName& name : versions) {
    if (name.epoch <= state_->rank_epoch) continue;
    return FailedPreconditionError(
        "{} has version {} of epoch {}, this sender has epoch {}: another sender serves trainer "
        "rank {} now; stop one of them",
        stream_folder_, name.version.value(), name.epoch.value(), state_->rank_epoch.value(),
        state_->trainer_rank.value());
  }
  return OkStatus();
}

std::string SharedWriter::FolderOf(const RetainedVersion& version) const {
  DWS_CHECK(!stream_folder_.empty());  // Begin comes first
  return fmt::format(
      "{}/{}", stream_folder_,
      shared::VersionFolderName({.version = version.version, .epoch = state_->rank_epoch}));
}

Result<shared::ManifestPtr> SharedWriter::Tidied(const RetainedVersion& version,
                                                 Result<shared::ManifestPtr> written) {
  const Status& status = written.status();
  // A place that does not answer is not asked for more: the version is written again, or retired.
  if (status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
      absl::IsCancelled(status)) {
    return written;
  }
  const Status removed = RemoveUnnamed(files_, FolderOf(version), place_.key);
  if (!removed.ok()) LogWarning("shared_not_retired", {{"reason", Message(removed)}});
  return written;
}

Result<shared::Manifest> SharedWriter::WriteChange(const RetainedVersion& version) {
  shared::Manifest manifest{.job_id = place_.job_id,
                            .stream = state_->stream,
                            .trainer_rank = state_->trainer_rank,
                            .name = {.version = version.version, .epoch = state_->rank_epoch},
                            .base = version.base,
                            .state_token = version.manifest.state_token,
                            .welcome = welcome_};
  const std::string folder = FolderOf(version);
  DWS_RETURN_IF_ERROR(files_.MakeFolders(folder));
  const std::string description = DescriptionOf(version);
  DWS_ASSIGN_OR_RETURN(auto entry, shared::WriteWhole(files_, folder, shared::kDescriptionName,
                                                      AsBytes(description)));
  manifest.files.push_back(std::move(entry));
  if (version.base.has_value()) {
    DWS_ASSIGN_OR_RETURN(entry, shared::WriteWhole(files_, folder, shared::kDeltaName,
                                                   version.object_of(place_.profile)));
    manifest.files.push_back(std::move(entry));
  }
  return manifest;
}

Result<shared::ManifestPtr> SharedWriter::WriteManifest(const RetainedVersion& version,
                                                        Result<shared::Manifest> manifest) {
  DWS_RETURN_IF_ERROR(manifest.status());
  const std::vector<std::byte> bytes = shared::SerializeManifest(*manifest, place_.key);
  DWS_RETURN_IF_ERROR(
      files_.ReplaceFile(fmt::format("{}/{}", FolderOf(version), shared::kManifestName), bytes));
  return std::make_shared<const shared::Manifest>(*std::move(manifest));
}

Result<shared::ManifestPtr> SharedWriter::WriteDigests(const RetainedVersion& version) {
  DWS_CHECK(!version.base.has_value());
  return Tidied(version, WriteManifest(version, WriteChange(version)));
}

Result<shared::ManifestPtr> SharedWriter::WriteDelta(const RetainedVersion& version) {
  DWS_CHECK(version.base.has_value());
  return Tidied(version, WriteManifest(version, WriteChange(version)));
}

Result<shared::ManifestPtr> SharedWriter::WriteAnchor(const RetainedVersion& version,
                                                      const shared::Manifest* delta) {
  DWS_CHECK(delta == nullptr || (delta->name.version == version.version && !delta->is_anchor()));
  Result<shared::Manifest> manifest = delta != nullptr ? *delta : WriteChange(version);
  if (manifest.ok()) {
    const Status full = WriteFull(version.version, FolderOf(version), manifest->files);
    if (!full.ok()) manifest = full;
  }
  return Tidied(version, WriteManifest(version, std::move(manifest)));
}

Status SharedWriter::WriteFull(WeightVersion version, const std::string& folder,
                               std::vector<shared::FileEntry>& entries) {
  FullReader reader(state_->snapshot, state_->log, version, WholeSlices(state_->layout()));
  DWS_ASSIGN_OR_RETURN(auto full,
                       shared::FileWriter::Create(files_, folder, std::string(shared::kFullName),
                                                  limits::kSharedFullPieceBytes));
  v1::SharedFullIndex index;
  uint64_t offset = 0;
  uint64_t content_bytes = 0;
  while (true) {
    DWS_ASSIGN_OR_RETURN(const auto frames, reader.NextWhile(wanted_));
    if (frames.empty()) break;
    for (const FullFrame& frame : frames) {
      DWS_RETURN_IF_ERROR(full.Append(frame.bytes));
      const bool same = index.slices_size() > 0 &&
                        index.slices(index.slices_size() - 1).rank_slice() == frame.slice.value();
      v1::SharedFullSlice& slice =
          same ? *index.mutable_slices(index.slices_size() - 1) : *index.add_slices();
      slice.set_rank_slice(frame.slice.value());
      FrameEntry entry = frame.entry;
      entry.offset = offset;
      *slice.add_frames() = ToProto(entry);
      offset += frame.bytes.size();
      content_bytes += frame.content.size();
    }
  }
  DWS_CHECK(content_bytes == state_->layout().size_bytes());
  DWS_ASSIGN_OR_RETURN(auto entry, full.Finish());
  entries.push_back(std::move(entry));
  const std::string bytes = index.SerializeAsString();
  DWS_ASSIGN_OR_RETURN(entry,
                       shared::WriteWhole(files_, folder, shared::kFullIndexName, AsBytes(bytes)));
  entries.push_back(std::move(entry));
  return OkStatus();
}

}  // namespace dws
