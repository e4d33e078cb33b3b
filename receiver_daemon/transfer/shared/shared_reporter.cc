#include "receiver_daemon/transfer/shared/shared_reporter.h"

#include <random>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/transport/shared_fs/names.h"

namespace dws {
namespace {

uint64_t RandomSession() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

bool SameStream(const v1::SharedReport& report, const StreamId& stream) {
  return report.stream().incarnation() == stream.incarnation &&
         report.stream().id_hi() == stream.id_hi && report.stream().id_lo() == stream.id_lo;
}

}  // namespace

Result<std::unique_ptr<SharedReporter>> SharedReporter::Create(FileSystem& files,
                                                               const Subscription& subscription,
                                                               Options options) {
  DWS_ASSIGN_OR_RETURN(std::string name, shared::EscapeId(options.name.receiver_id));
  return std::unique_ptr<SharedReporter>(
      new SharedReporter(files, subscription, std::move(options), std::move(name)));
}

SharedReporter::SharedReporter(FileSystem& files, const Subscription& subscription, Options options,
                               std::string file_name)
    : files_(files),
      subscription_(subscription),
      options_(std::move(options)),
      file_name_(std::move(file_name)),
      troubles_(options_.rank_folders.size()),
      reports_(options_.rank_folders.size()),
      loop_([this] {
        WriteAll();
        return limits::kSharedReportInterval;
      }) {
  const uint64_t session = RandomSession();
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    Introduce(options_.name, reports_[rank]);
    reports_[rank].set_trainer_rank(static_cast<uint32_t>(rank));
    reports_[rank].set_session(session);
  }
}

SharedReporter::~SharedReporter() { Stop(); }

void SharedReporter::Start() { loop_.Start(); }

void SharedReporter::Stop() {
  if (!loop_.started()) return;
  loop_.Stop();
  WriteAll();
}

void SharedReporter::WriteAll() {
  for (size_t rank = 0; rank < options_.rank_folders.size(); ++rank) Write(rank);
}

void SharedReporter::Write(size_t rank) {
  const auto live = subscription_.LiveOf(TrainerRank(static_cast<uint32_t>(rank)));
  std::string bytes;
  {
    MutexLock lock(mutex_);
    v1::SharedReport& report = reports_[rank];
    // Reports what was adopted or committed before this process, and commits whose report was lost.
    if (live.has_value() && (!report.has_stream() || SameStream(report, live->at.stream)) &&
        report.committed_version() <= live->at.version.value()) {
      *report.mutable_stream() = ToProto(live->at.stream);
      report.set_committed_version(live->at.version.value());
      *report.mutable_committed_state_token() = ToProto(live->state_token);
    }
    report.set_sequence(report.sequence() + 1);
    bytes = report.SerializeAsString();
  }
  const std::string folder =
      fmt::format("{}/{}", options_.rank_folders[rank], shared::kReceiversName);
  Status status = files_.MakeFolders(folder);
  if (status.ok()) {
    status = files_.ReplaceFile(fmt::format("{}/{}", folder, file_name_),
                                shared::Seal(shared::SealedKind::kReport, bytes, options_.key));
  }
  if (const std::string trouble(Message(status)); trouble != troubles_[rank]) {
    troubles_[rank] = trouble;
    if (absl::IsFailedPrecondition(status)) {  // a place that is only read was chosen as such
      LogInfo("shared_report_not_written", {{"reason", trouble}});
    } else if (!status.ok()) {
      LogWarning("shared_report_not_written", {{"reason", trouble}});
    }
  }
}

v1::SharedReport& SharedReporter::Of(TrainerRank rank, const StreamId& stream) {
  v1::SharedReport& report = reports_[rank.value()];
  if (!report.has_stream() || !SameStream(report, stream)) {
    *report.mutable_stream() = ToProto(stream);
    report.clear_staged_version();
    report.clear_committed_version();
    report.clear_committed_state_token();
    report.clear_lacks_full_of();
  }
  loop_.Wake();
  return report;
}

void SharedReporter::Staged(TrainerRank rank, const VersionAt& at) {
  MutexLock lock(mutex_);
  Of(rank, at.stream).set_staged_version(at.version.value());
}

void SharedReporter::Committed(TrainerRank rank, const VersionAt& at,
                               const CommittedReport& committed) {
  MutexLock lock(mutex_);
  v1::SharedReport& report = Of(rank, at.stream);
  report.set_committed_version(at.version.value());
  *report.mutable_committed_state_token() = ToProto(committed.state_token);
  report.set_pause_seconds(committed.pause_seconds);
  report.set_stage_seconds(committed.stage_seconds);
  report.set_fetched_bytes(committed.fetched_bytes);
  report.clear_lacks_full_of();
}

void SharedReporter::Lacks(TrainerRank rank, const VersionAt& at) {
  MutexLock lock(mutex_);
  Of(rank, at.stream).set_lacks_full_of(at.version.value());
}

void SharedReporter::Rejected(TrainerRank rank, const VersionAt& at, const Rejection& rejection) {
  MutexLock lock(mutex_);
  v1::SharedReport& report = Of(rank, at.stream);
  report.set_rejections(report.rejections() + 1);
  report.set_rejected_version(at.version.value());
  report.set_rejected_code(static_cast<uint32_t>(rejection.reason.code()));
  report.set_rejected_message(
      std::string(Utf8Prefix(Message(rejection.reason), limits::kErrorBytesMax)));
  report.clear_rejected_slices();
  for (const RankSlice slice : rejection.slices) {
    if (static_cast<size_t>(report.rejected_slices_size()) == limits::kSharedSlicesNamedMax) break;
    report.add_rejected_slices(slice.value());
  }
}

}  // namespace dws
