#include "sender_daemon/shared/shared_retirement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/transport/shared_fs/names.h"
#include "sender_daemon/shared/shared_writer.h"

namespace dws {
namespace {

void Note(const Status& status, Status& first) {
  if (first.ok() && !absl::IsNotFound(status)) first = status;
}

Status RemoveVersion(FileSystem& files, const std::string& folder) {
  Status first;
  const std::string manifest = fmt::format("{}/{}", folder, shared::kManifestName);
  Note(files.Remove(manifest), first);
  DWS_RETURN_IF_ERROR(first);
  const auto names = files.List(folder);
  if (!names.ok()) return absl::IsNotFound(names.status()) ? OkStatus() : names.status();
  for (const std::string& name : *names) {
    Note(files.Remove(fmt::format("{}/{}", folder, name)), first);
  }
  Note(files.RemoveFolder(folder), first);
  return first;
}

bool HasManifest(FileSystem& files, const std::string& folder) {
  return !absl::IsNotFound(
      files.OpenForRead(fmt::format("{}/{}", folder, shared::kManifestName)).status());
}

Status RemoveStream(FileSystem& files, const std::string& folder) {
  Status first;
  DWS_ASSIGN_OR_RETURN(const auto versions, shared::ListVersions(files, folder));
  for (const shared::VersionName& name : versions) {
    Note(RemoveVersion(files, fmt::format("{}/{}", folder, shared::VersionFolderName(name))),
         first);
  }
  const auto names = files.List(folder);
  if (!names.ok()) return absl::IsNotFound(names.status()) ? OkStatus() : names.status();
  for (const std::string& name : *names) {
    if (name.starts_with("welcome-")) Note(files.Remove(fmt::format("{}/{}", folder, name)), first);
  }
  Note(files.RemoveFolder(folder), first);
  return first;
}

// Removes the streams whose incarnation is less than `before`.
Status RemoveStreams(FileSystem& files, const std::string& rank_folder, uint64_t before) {
  Status first;
  DWS_ASSIGN_OR_RETURN(const auto streams, shared::ListStreams(files, rank_folder));
  for (const StreamId& stream : streams) {
    if (stream.incarnation >= before) continue;
    Note(RemoveStream(files, fmt::format("{}/{}", rank_folder, shared::StreamName(stream))), first);
  }
  return first;
}

// Removes welcomes that no version names any longer.
void RemoveWelcomes(FileSystem& files, const std::string& folder, RankEpoch epoch,
                    const std::set<RankEpoch>& used, Status& first) {
  const auto names = files.List(folder);
  if (!names.ok()) return Note(names.status(), first);
  for (const std::string& name : *names) {
    const auto of = shared::ParseWelcomeName(name);
    if (!of.has_value() || *of >= epoch || used.contains(*of)) continue;
    Note(files.Remove(fmt::format("{}/{}", folder, name)), first);
  }
}

// Removes versions, and welcomes that only they name.
Status RetireVersions(FileSystem& files, const shared::VersionCatalog& catalog,
                      const RetirementRule& rule) {
  Status first;
  const std::string& folder = catalog.place().folder;
  DWS_ASSIGN_OR_RETURN(const auto names, shared::ListVersions(files, folder));
  const shared::ManifestPtr anchor = catalog.versions().NewestAnchor();
  std::set<RankEpoch> used;
  size_t newer = names.size();
  for (const shared::VersionName& name : names) {
    --newer;
    const std::string version = fmt::format("{}/{}", folder, shared::VersionFolderName(name));
    const bool old = anchor != nullptr && name.version < anchor->name.version &&
                     (newer >= rule.versions_max || rule.unneeded(rule.stream, name.version));
    // An earlier sender left it unfinished, or this one gave it up.
    const bool given_up = name.epoch < rule.epoch ||
                          (name.epoch == rule.epoch && (!rule.last || name.version < *rule.last));
    const bool torso = given_up && !HasManifest(files, version);
    if (old || torso) {
      Note(RemoveVersion(files, version), first);
      LogDebug("shared_version_removed", {{"version", name.version.value()}, {"torso", torso}});
    } else {
      used.insert(name.epoch);
    }
  }
  DWS_CHECK(newer == 0);
  RemoveWelcomes(files, folder, rule.epoch, used, first);
  return first;
}

}  // namespace

Status RetireShared(FileSystem& files, const std::string& rank_folder,
                    const shared::VersionCatalog& catalog, const RetirementRule& rule) {
  Status first = RetireVersions(files, catalog, rule);
  if (catalog.versions().Reachable(1).empty()) return first;
  Note(RemoveStreams(files, rank_folder, rule.stream.incarnation), first);
  return first;
}

Status RetireOlder(FileSystem& files, const std::string& rank_folder,
                   const shared::VersionCatalog::Place& place, const RetirementRule& rule) {
  Status first;
  DWS_ASSIGN_OR_RETURN(const auto streams, shared::ListStreams(files, rank_folder));
  for (const StreamId& stream : streams) {
    if (stream.incarnation >= rule.stream.incarnation) continue;
    shared::VersionCatalog::Place older = place;
    older.stream = stream;
    older.folder = fmt::format("{}/{}", rank_folder, shared::StreamName(stream));
    RetirementRule there = rule;
    there.stream = stream;
    there.epoch = RankEpoch(UINT64_MAX);  // nobody publishes there
    there.last.reset();
    shared::VersionCatalog catalog(files, std::move(older));
    Status retired = catalog.Refresh();
    if (retired.ok()) retired = RetireVersions(files, catalog, there);
    Note(retired, first);
  }
  return first;
}

Status RemoveUnnamed(FileSystem& files, const std::string& folder, const shared::Key& key) {
  const std::string path = fmt::format("{}/{}", folder, shared::kManifestName);
  const auto bytes = files.ReadFile(path, limits::kSharedManifestBytesMax);
  if (absl::IsNotFound(bytes.status())) return RemoveVersion(files, folder);
  DWS_RETURN_IF_ERROR(bytes.status());
  DWS_ASSIGN_OR_RETURN(const shared::Manifest manifest, shared::ParseManifest(*bytes, key, path));
  DWS_ASSIGN_OR_RETURN(const auto names, files.List(folder));
  Status first;
  for (const std::string& name : names) {
    if (name == shared::kManifestName || manifest.Find(name) != nullptr) continue;
    Note(files.Remove(fmt::format("{}/{}", folder, name)), first);
  }
  return first;
}

Status RetireViews(FileSystem& files, const std::string& root, const std::string& job_id,
                   TrainerRank rank, const std::vector<std::string>& views,
                   const StreamId& stream) {
  Status first;
  DWS_ASSIGN_OR_RETURN(const auto roots, shared::ListViewRoots(files, root));
  for (const std::string& other : roots) {
    const bool ours = std::ranges::any_of(
        views, [&](const std::string& view) { return shared::RootOfView(root, view) == other; });
    if (ours) continue;
    DWS_ASSIGN_OR_RETURN(const auto folder, SharedRankFolder(other, job_id, rank));
    Note(RemoveStreams(files, folder, stream.incarnation + 1), first);
  }
  return first;
}

}  // namespace dws
