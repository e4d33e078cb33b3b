#include "common/formats/slime_delta/local/local_state.h"

#include <utility>

#include "common/formats/checkpoint/settled.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

constexpr const char* kVersion = "version";
constexpr const char* kValid = "valid";
constexpr const char* kStream = "stream";
constexpr const char* kChain = "chain";
constexpr const char* kName = "name";
constexpr const char* kSince = "since";
constexpr const char* kApplied = "applied";
constexpr const char* kRefused = "refused";
constexpr const char* kDoubted = "doubted";
constexpr const char* kOther = "other_ns";
constexpr const char* kFormat = "checksum_format";
constexpr const char* kTensors = "tensors";

// The JSON object in a file; nullopt when there is no file.
Result<std::optional<nlohmann::json>> ReadObject(FileSystem& files, const std::string& path,
                                                 uint64_t size_bytes_max) {
  const Result<std::vector<std::byte>> text = files.ReadFile(path, size_bytes_max);
  if (absl::IsNotFound(text.status())) return std::optional<nlohmann::json>();
  DWS_RETURN_IF_ERROR(text.status());
  DWS_ASSIGN_OR_RETURN(nlohmann::json object, ParseStrictJson(AsText(*text), path));
  if (!object.is_object()) return DataLossError("{}: expected a JSON object", path);
  return std::optional<nlohmann::json>(std::move(object));
}

Result<uint64_t> VersionOf(const nlohmann::json& object, const std::string& path,
                           const char* key = kVersion) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) {
    if (const auto version = ParseVersionText(found->get<std::string>())) return *version;
  }
  if (found != object.end() && found->is_number_unsigned() &&
      found->get<uint64_t>() <= limits::kSlimeVersionMax) {
    return found->get<uint64_t>();  // some writers state a number
  }
  return DataLossError("{}: expected a version at '{}', as \"000002\"", path, key);
}

Result<std::string> TextOf(const nlohmann::json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get<std::string>();
  return DataLossError("{}: expected a string at '{}'", path, key);
}
// Like TextOf, but returns an empty text if there is no such member.
Result<std::string> TextIfAny(const nlohmann::json& object, const char* key,
                              const std::string& path) {
  if (!object.contains(key)) return std::string();
  return TextOf(object, key, path);
}

Result<Lineage> LineageOf(const nlohmann::json& object, const std::string& path) {
  Lineage lineage;
  DWS_ASSIGN_OR_RETURN(lineage.chain, TextOf(object, kChain, path));
  if (object.contains(kSince)) {
    DWS_ASSIGN_OR_RETURN(lineage.since, VersionOf(object, path, kSince));
  }
  if (!object.contains(kApplied)) return DataLossError("{}: expected '{}'", path, kApplied);
  DWS_ASSIGN_OR_RETURN(const auto applied, StringMembers(object[kApplied], path));
  for (const auto& [number, text] : applied) {
    const std::optional<uint64_t> of = ParseVersionText(number);
    std::optional<AppliedVersion> parsed = ParseApplied(text);
    if (!of.has_value() || !parsed.has_value()) {
      return DataLossError("{}: '{}' is '{}', expected an applied version", path, number, text);
    }
    lineage.applied[*of] = *std::move(parsed);
  }
  DWS_ASSIGN_OR_RETURN(lineage.stream, TextIfAny(object, kStream, path));
  DWS_ASSIGN_OR_RETURN(lineage.name, TextIfAny(object, kName, path));
  DWS_ASSIGN_OR_RETURN(lineage.refused, TextIfAny(object, kRefused, path));
  DWS_ASSIGN_OR_RETURN(lineage.doubted, TextIfAny(object, kDoubted, path));
  if (const auto other = object.find(kOther); other != object.end()) {
    if (!other->is_number_integer()) {
      return DataLossError("{}: expected an integer at '{}'", path, kOther);
    }
    lineage.other_ns = other->get<int64_t>();
  }
  return lineage;
}

}  // namespace

std::string StatePath(const std::string& checkpoint_folder) {
  return checkpoint::SyncFolder(checkpoint_folder) + "/state.json";
}

std::string DigestsPath(const std::string& checkpoint_folder) {
  return checkpoint::SyncFolder(checkpoint_folder) + "/digests.json";
}

Result<uint64_t> ReadState(FileSystem& files, const std::string& checkpoint_folder) {
  const std::string path = StatePath(checkpoint_folder);
  DWS_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> state,
                       ReadObject(files, path, limits::kSyncStateBytesMax));
  if (!state.has_value()) return 0;
  if (state->value(kValid, nlohmann::json(true)) != true) {
    return DataLossError(
        "{}: \"valid\" is not true: another program began to change this checkpoint and has not "
        "finished, so its files may be of two versions. Copy a checkpoint there again, without "
        ".weight_sync",
        path);
  }
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
  return ReadDigestsFrom(files, DigestsPath(checkpoint_folder));
}

Status WriteDigests(FileSystem& files, const std::string& checkpoint_folder,
                    const LocalDigests& digests) {
  return WriteDigestsTo(files, DigestsPath(checkpoint_folder), digests);
}

Result<std::optional<LocalDigests>> ReadDigestsFrom(FileSystem& files, const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> object,
                       ReadObject(files, path, limits::kCheckpointIndexBytesMax));
  if (!object.has_value()) return std::optional<LocalDigests>();
  LocalDigests digests;
  DWS_ASSIGN_OR_RETURN(digests.version, VersionOf(*object, path));
  DWS_ASSIGN_OR_RETURN(digests.lineage, LineageOf(*object, path));
  DWS_ASSIGN_OR_RETURN(const std::string format, TextOf(*object, kFormat, path));
  if (format != NameOf(ChecksumFormat::kXxh3) || !object->contains(kTensors)) {
    return DataLossError("{}: expected digests in {}", path, NameOf(ChecksumFormat::kXxh3));
  }
  DWS_ASSIGN_OR_RETURN(digests.tensors, StringMembers((*object)[kTensors], path));
  return std::optional<LocalDigests>(std::move(digests));
}

Status WriteDigestsTo(FileSystem& files, const std::string& path, const LocalDigests& digests) {
  const Lineage& lineage = digests.lineage;
  std::map<std::string, std::string> applied;
  for (const auto& [version, one] : lineage.applied) {
    applied[VersionText(version)] = AppliedText(one);
  }
  nlohmann::ordered_json object = {
      {kVersion, VersionText(digests.version)},
      {kStream, lineage.stream},
      {kChain, lineage.chain},
      {kApplied, nlohmann::json(applied)},
      {kFormat, std::string(NameOf(ChecksumFormat::kXxh3))},
  };
  if (!lineage.name.empty()) object[kName] = lineage.name;
  if (lineage.since.has_value()) object[kSince] = VersionText(*lineage.since);
  if (!lineage.refused.empty()) object[kRefused] = lineage.refused;
  if (!lineage.doubted.empty()) object[kDoubted] = lineage.doubted;
  if (lineage.other_ns.has_value()) object[kOther] = *lineage.other_ns;
  object[kTensors] = nlohmann::json(digests.tensors);
  return files.ReplaceFile(path, AsBytes(object.dump(1)));
}

}  // namespace dws::slime
