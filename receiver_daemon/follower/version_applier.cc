#include "receiver_daemon/follower/version_applier.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/formats/held_folder.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/fit.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws {
namespace {

constexpr std::chrono::minutes kIncompleteMax{5};  // for a version without all its files
constexpr std::chrono::seconds kSettledMin{5};     // for a full checkpoint without an index

}  // namespace

VersionApplier::VersionApplier(std::string folder, FileSystem& files, const Clock& clock,
                               Duration incomplete_max, std::function<void()> on_begin)
    : folder_(std::move(folder)),
      files_(files),
      clock_(clock),
      incomplete_max_(std::min<Duration>(incomplete_max, kIncompleteMax)),
      on_begin_(std::move(on_begin)) {}

std::string VersionApplier::PathOf(uint64_t version) const {
  return folder_ + "/" + slime::VersionFolderName(version);
}

Result<std::vector<uint64_t>> VersionApplier::List() {
  DWS_ASSIGN_OR_RETURN(std::vector<uint64_t> versions, slime::ListVersions(files_, folder_));
  newest_ = versions.empty() ? 0 : versions.back();
  if (!versions.empty()) return versions;
  // Versions that have no number have no order.
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder_));
  for (const std::string& name : names) {
    std::error_code ignored;
    const std::filesystem::path folder = std::filesystem::path(folder_) / name;
    if (name.starts_with('.') ||
        !std::filesystem::exists(folder / safetensors::kIndexFile, ignored)) {
      continue;
    }
    return FailedPreconditionError(
        "{}: the version folder '{}' has no number, so the order of the versions is not known: "
        "expected names as weight_v000001",
        folder_, name);
  }
  return versions;
}

void VersionApplier::Forget() {
  incomplete_.reset();
  refusals_.clear();
}

Status VersionApplier::UnlessRefused(uint64_t version, const Time& written,
                                     const std::function<Status()>& work) {
  const TimePoint begin = clock_.Now();
  const auto known = refusals_.find(version);
  if (known != refusals_.end() && known->second.index_time == written &&
      begin < known->second.until) {
    DWS_CHECK(!known->second.status.ok());
    return known->second.status;
  }
  const Status status = work();
  refusals_.erase(version);
  if (status.ok() || absl::IsUnavailable(status)) return status;
  const TimePoint end = clock_.Now();
  refusals_[version] = {.index_time = written,
                        .until = end + 10 * (end - begin),
                        .status = Annotate(status, slime::VersionFolderName(version))};
  return refusals_[version].status;
}

VersionApplier::Time VersionApplier::IndexTime(uint64_t version) const {
  for (const char* const name : {safetensors::kIndexFile, safetensors::kSingleFile}) {
    std::error_code failed;
    const auto time = std::filesystem::last_write_time(PathOf(version) + "/" + name, failed);
    if (!failed) return time;
  }
  return std::nullopt;
}

Result<bool> VersionApplier::Settled(uint64_t version) {
  DWS_ASSIGN_OR_RETURN(const HeldFolder folder, HeldFolder::Open(folder_));
  const std::string name = slime::VersionFolderName(version) + "/";
  DWS_ASSIGN_OR_RETURN(const auto index, folder.Stamp(name + safetensors::kIndexFile));
  DWS_ASSIGN_OR_RETURN(const auto single, folder.Stamp(name + safetensors::kSingleFile));
  if (index.has_value() || !single.has_value()) return true;
  const TimePoint now = clock_.Now();
  if (!unindexed_.has_value() || unindexed_->version != version || unindexed_->stamp != *single) {
    unindexed_ = {.version = version, .stamp = *single, .since = now};
  }
  return now - unindexed_->since >= kSettledMin;
}

std::optional<uint64_t> VersionApplier::NewestFull(const slime::LocalCheckpoint& checkpoint,
                                                   const std::vector<uint64_t>& versions,
                                                   uint64_t after) const {
  const auto claims = slime::IndexLimits(checkpoint.checkpoint());
  for (auto version = versions.rbegin(); version != versions.rend() && *version > after;
       ++version) {
    const auto index = slime::ReadVersionIndex(files_, PathOf(*version), claims);
    if (index.ok() && !index->delta.has_value()) return *version;
  }
  return std::nullopt;
}

Result<VersionApplier::Applied> VersionApplier::ApplyNext(slime::LocalCheckpoint& checkpoint) {
  incomplete_before_ = std::exchange(incomplete_, std::nullopt);
  unproved_ = false;
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, List());
  const uint64_t local = checkpoint.version();
  const TimePoint begin = clock_.Now();
  Status refused =
      UnlessRefused(local, IndexTime(local), [&] { return checkpoint.CheckRun(folder_); });
  if (absl::IsUnavailable(refused)) return Await(local, begin, refused);
  const bool other_run = !refused.ok();
  if (!other_run) {
    Result<Applied> applied = ApplyFollowing(checkpoint, versions);
    if (applied.ok() || checkpoint.halfway()) return applied;
    refused = applied.status();
  }
  DWS_CHECK(!refused.ok());
  const std::optional<uint64_t> full =
      NewestFull(checkpoint, versions, other_run ? local : local + 1);
  if (!full.has_value()) return refused;
  // The folder of a new run may still have later versions of the run before. Those are older than
  // the first version that shows the new run.
  DWS_ASSIGN_OR_RETURN(const std::optional<int64_t> since,
                       checkpoint.OtherRunSince(folder_, other_run));
  if (since.has_value()) {
    DWS_ASSIGN_OR_RETURN(const HeldFolder folder, HeldFolder::Open(folder_));
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> written,
                         slime::StampOfVersion(folder, *full));
    if (!written.has_value() || written->modified_ns <= *since) return refused;
  }
  DWS_ASSIGN_OR_RETURN(Applied taken, Apply(checkpoint, *full));
  if (!taken.has_value()) return refused;
  LogWarning("versions_skipped",
             {{"from", local + 1}, {"to_full_version", *full}, {"reason", Message(refused)}});
  return taken;
}

Result<VersionApplier::Applied> VersionApplier::ApplyFollowing(
    slime::LocalCheckpoint& checkpoint, const std::vector<uint64_t>& versions) {
  DWS_CHECK(std::is_sorted(versions.begin(), versions.end()));
  const uint64_t local = checkpoint.version();
  if (std::binary_search(versions.begin(), versions.end(), local + 1)) {
    return Apply(checkpoint, local + 1);
  }
  if (versions.empty() || versions.back() <= local) return Applied();
  return FailedPreconditionError(
      "{} has version {} and no longer version {}, which comes after the local checkpoint's: put a "
      "full checkpoint of version {} or later in its place, or have one published",
      folder_, versions.back(), local + 1, local);
}

Result<VersionApplier::Applied> VersionApplier::Apply(slime::LocalCheckpoint& checkpoint,
                                                      uint64_t version) {
  DWS_CHECK(version > checkpoint.version());  // the next one, or a later full checkpoint
  DWS_ASSIGN_OR_RETURN(const bool settled, Settled(version));
  if (!settled) return Applied();
  on_begin_();
  const TimePoint begin = clock_.Now();
  const auto written = IndexTime(version);
  Result<slime::ApplyReport> report = slime::ApplyReport();
  std::optional<bool> unproved;  // nullopt: refused before, and not read again
  const Status status = UnlessRefused(version, written, [&] {
    report = checkpoint.Apply(PathOf(version));
    unproved = checkpoint.unproved();
    return report.status();
  });
  if (absl::IsUnavailable(status) && !checkpoint.halfway()) return Await(version, begin, status);
  if (const auto refusal = refusals_.find(version); refusal != refusals_.end()) {
    if (unproved.has_value()) refusal->second.unproved = *unproved;
    unproved_ = refusal->second.unproved;
  }
  DWS_RETURN_IF_ERROR(status);
  DWS_CHECK(report.ok());  // `work` ran: a refused version has an error
  refusals_.clear();
  return Applied(*report);
}

VersionApplier::Seen VersionApplier::FilesOf(uint64_t version) const {
  Seen seen;
  const auto folder = HeldFolder::Open(PathOf(version));
  if (!folder.ok()) return seen;
  const auto names = folder->List();
  if (!names.ok()) return seen;
  for (const std::string& name : *names) {
    const auto stamp = folder->Stamp(name);
    seen[name] = stamp.ok() ? *stamp : std::nullopt;
  }
  return seen;
}

// The writer has not finished, or this machine does not see all files yet: look again later.
Result<VersionApplier::Applied> VersionApplier::Await(uint64_t version, TimePoint begin,
                                                      const Status& status) {
  DWS_CHECK(absl::IsUnavailable(status));
  Seen seen = FilesOf(version);
  const bool same =
      incomplete_before_.has_value() && incomplete_before_->version == version && seen == seen_;
  seen_ = std::move(seen);
  const TimePoint since = same ? incomplete_before_->since : begin;
  incomplete_ = {.version = version,
                 .since = since,
                 .has_files = !seen_.empty(),
                 .missing = fmt::format("version {} is not complete: {}",
                                        slime::VersionText(version), Message(status))};
  const Duration max = incomplete_->has_files ? incomplete_max_ : Duration(kIncompleteMax);
  if (begin - since < max) return Applied();
  return UnavailableError("{}", incomplete_->missing);
}

}  // namespace dws
