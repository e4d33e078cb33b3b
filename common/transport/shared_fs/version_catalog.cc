#include "common/transport/shared_fs/version_catalog.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "common/model/limits.h"

namespace dws::shared {
namespace {

constexpr int kUnreachableMax = 3;  // manifests one after the other

Result<std::vector<std::string>> ListIfThere(FileSystem& files, const std::string& folder) {
  auto names = files.List(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  if (names.ok() && names->size() > limits::kSharedFoldersMax) {
    // Not RESOURCE_EXHAUSTED: another copy of the directory may have fewer.
    return UnavailableError("{} has {} names, at most {} are looked at", folder, names->size(),
                            limits::kSharedFoldersMax);
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> ListViewRoots(FileSystem& files, const std::string& root) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListIfThere(files, root));
  std::vector<std::string> roots;
  for (const std::string& name : names) {
    if (name.starts_with(kViewPrefix)) roots.push_back(fmt::format("{}/{}", root, name));
  }
  return roots;
}

Result<std::vector<StreamId>> ListStreams(FileSystem& files, const std::string& rank_folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListIfThere(files, rank_folder));
  std::vector<StreamId> streams;
  for (const std::string& name : names) {
    if (const auto stream = ParseStreamName(name); stream.has_value()) streams.push_back(*stream);
  }
  std::sort(streams.begin(), streams.end());
  return streams;
}

Result<std::vector<VersionName>> ListVersions(FileSystem& files, const std::string& stream_folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListIfThere(files, stream_folder));
  std::vector<VersionName> versions;
  for (const std::string& name : names) {
    const auto version = ParseVersionFolderName(name);
    if (version.has_value() && version->version > WeightVersion(0)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

Result<ManifestPtr> VersionCatalog::ReadManifest(VersionName name) const {
  const std::string path =
      fmt::format("{}/{}/{}", place_.folder, VersionFolderName(name), kManifestName);
  DWS_ASSIGN_OR_RETURN(const auto bytes, files_.ReadFile(path, limits::kSharedManifestBytesMax));
  DWS_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(bytes, place_.key, path));
  if (manifest.job_id != place_.job_id || manifest.stream != place_.stream ||
      manifest.trainer_rank != place_.rank || manifest.name != name) {
    return FailedPreconditionError(
        "{} is of job '{}', rank {}, stream {}, version {} of epoch {}: the folder was copied or "
        "renamed; remove it",
        path, manifest.job_id, manifest.trainer_rank.value(), ToString(manifest.stream),
        manifest.name.version.value(), manifest.name.epoch.value());
  }
  return std::make_shared<const Manifest>(std::move(manifest));
}

Status VersionCatalog::Refresh(const std::function<void()>& on_read) {
  DWS_ASSIGN_OR_RETURN(const std::vector<VersionName> names, ListVersions(files_, place_.folder));
  const std::map<VersionName, ManifestPtr> known = versions_.all();
  for (const auto& [name, manifest] : known) {
    if (!std::binary_search(names.begin(), names.end(), name)) versions_.Remove(name);
  }
  // A manifest can be replaced by one with more files: a version that is out of reach may have
  // become an anchor.
  const std::vector<WeightVersion> reached = versions_.Reachable(SIZE_MAX);
  for (const auto& [name, manifest] : known) {
    if (!std::binary_search(reached.begin(), reached.end(), name.version)) versions_.Remove(name);
  }
  trouble_ = OkStatus();
  all_answered_ = true;
  int unreachable = 0;
  // The newest first: where the place fails, what is wanted most has come.
  for (const VersionName& name : std::views::reverse(names)) {
    if (versions_.all().contains(name)) continue;
    auto manifest = ReadManifest(name);
    on_read();
    const Status& status = manifest.status();
    unreachable = absl::IsUnavailable(status) ? unreachable + 1 : 0;
    const bool ends = absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
    if (ends || unreachable > 0) all_answered_ = false;
    if (ends || unreachable == kUnreachableMax) {
      if (versions_.Reachable(1).empty()) return status;
      trouble_ = status;
      break;  // the others would take as long
    }
    if (status.ok()) {
      versions_.Put(*std::move(manifest));
    } else if (!absl::IsNotFound(status)) {
      trouble_ = status;
    }
  }
  return OkStatus();
}

void VersionCatalog::Forget(WeightVersion version) {
  while (const ManifestPtr found = versions_.Find(version)) versions_.Remove(found->name);
}

}  // namespace dws::shared
