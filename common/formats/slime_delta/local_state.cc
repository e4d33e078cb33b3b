#include "common/formats/slime_delta/local_state.h"

#include <utility>

#include "common/formats/in_place_redo.h"
#include "common/formats/slime_delta/checksum.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

constexpr const char* kVersion = "version";
constexpr const char* kIdentity = "identity";
constexpr const char* kStream = "stream";
constexpr const char* kFormat = "checksum_format";
constexpr const char* kTensors = "tensors";

std::string StatePath(const std::string& checkpoint_folder) {
  return SyncFolder(checkpoint_folder) + "/state.json";
}
std::string DigestsPath(const std::string& checkpoint_folder) {
  return SyncFolder(checkpoint_folder) + "/digests.json";
}

// The object in a file; nullopt where there is no file.
Result<std::optional<nlohmann::json>> ReadObject(FileSystem& files, const std::string& path,
                                                 uint64_t size_bytes_max) {
  const Result<std::vector<std::byte>> text = files.ReadFile(path, size_bytes_max);
  if (absl::IsNotFound(text.status())) return std::optional<nlohmann::json>();
  DWS_RETURN_IF_ERROR(text.status());
  DWS_ASSIGN_OR_RETURN(nlohmann::json object, ParseStrictJson(AsText(*text), path));
  if (!object.is_object()) return DataLossError("{}: expected a JSON object", path);
  return std::optional<nlohmann::json>(std::move(object));
}

Result<uint64_t> VersionOf(const nlohmann::json& object, const std::string& path) {
  const auto found = object.find(kVersion);
  if (found != object.end() && found->is_string()) {
    if (const auto version = ParseVersionText(found->get<std::string>())) return *version;
  }
  return DataLossError("{}: expected a version, as \"000002\"", path);
}

Result<std::string> TextOf(const nlohmann::json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get<std::string>();
  return DataLossError("{}: expected a string at '{}'", path, key);
}

}  // namespace

std::string SyncFolder(const std::string& checkpoint_folder) {
  return checkpoint_folder + "/.weight_sync";
}

Result<std::unique_ptr<FileLock>> LockLocal(FileSystem& files,
                                            const std::string& checkpoint_folder) {
  DWS_RETURN_IF_ERROR(files.MakeFolders(SyncFolder(checkpoint_folder)));
  return files.Lock(SyncFolder(checkpoint_folder) + "/lock");
}

Status CheckNoInPlaceRedo(FileSystem& files, const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    if (!name.ends_with(kInPlaceRedoName)) continue;
    return FailedPreconditionError(
        "{}: a `dwsctl apply --in-place` of it was interrupted ({}/{} is there): run it again to "
        "complete it",
        folder, folder, name);
  }
  return OkStatus();
}

Result<uint64_t> ReadState(FileSystem& files, const std::string& checkpoint_folder) {
  const std::string path = StatePath(checkpoint_folder);
  DWS_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> state,
                       ReadObject(files, path, limits::kSyncStateBytesMax));
  if (!state.has_value()) return 0;
  return VersionOf(*state, path);
}

Status WriteState(FileSystem& files, const std::string& checkpoint_folder, uint64_t version) {
  const std::string path = StatePath(checkpoint_folder);
  DWS_ASSIGN_OR_RETURN(std::optional<nlohmann::json> state,
                       ReadObject(files, path, limits::kSyncStateBytesMax));
  if (!state.has_value()) state = nlohmann::json::object();
  (*state)[kVersion] = VersionText(version);
  return files.ReplaceFile(path, AsBytes(state->dump()));
}

Result<std::optional<LocalDigests>> ReadDigests(FileSystem& files,
                                                const std::string& checkpoint_folder) {
  const std::string path = DigestsPath(checkpoint_folder);
  DWS_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> object,
                       ReadObject(files, path, limits::kCheckpointIndexBytesMax));
  if (!object.has_value()) return std::optional<LocalDigests>();
  LocalDigests digests;
  DWS_ASSIGN_OR_RETURN(digests.version, VersionOf(*object, path));
  DWS_ASSIGN_OR_RETURN(digests.origin.identity, TextOf(*object, kIdentity, path));
  if (object->contains(kStream)) {
    DWS_ASSIGN_OR_RETURN(digests.origin.stream, TextOf(*object, kStream, path));
  }
  DWS_ASSIGN_OR_RETURN(const std::string format, TextOf(*object, kFormat, path));
  if (format != NameOf(ChecksumFormat::kXxh3) || !object->contains(kTensors)) {
    return DataLossError("{}: expected digests in {}", path, NameOf(ChecksumFormat::kXxh3));
  }
  DWS_ASSIGN_OR_RETURN(digests.tensors, StringMembers((*object)[kTensors], path));
  return std::optional<LocalDigests>(std::move(digests));
}

Status WriteDigests(FileSystem& files, const std::string& checkpoint_folder,
                    const LocalDigests& digests) {
  const nlohmann::ordered_json object = {
      {kVersion, VersionText(digests.version)},
      {kIdentity, digests.origin.identity},
      {kStream, digests.origin.stream},
      {kFormat, std::string(NameOf(ChecksumFormat::kXxh3))},
      {kTensors, nlohmann::json(digests.tensors)},
  };
  return files.ReplaceFile(DigestsPath(checkpoint_folder), AsBytes(object.dump(1)));
}

}  // namespace dws::slime
