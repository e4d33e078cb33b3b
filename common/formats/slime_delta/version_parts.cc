// The numbers refer to the header. A part's folder is removed once its shards are moved, so it need
// not be synced after the renames that leave it: after a power cut a shard is in one of two folders
// that readers ignore.
#include "common/formats/slime_delta/version_parts.h"

#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

// A shard of the version: where it is, and where it goes.
struct Move {
  std::string from;  // path
  std::string name;
};

std::set<std::string> ShardsOf(const VersionIndex& index) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.weight_map) shards.insert(shard);
  return shards;
}

std::string Describe(const VersionIndex& index) {
  std::string text = "full";
  if (index.delta.has_value()) {
    text = fmt::format("delta of {}, {}, {}", index.delta->base_version,
                       NameOf(index.delta->encoding), NameOf(index.delta->checksum));
  }
  for (const auto& [key, value] : index.extra) text += fmt::format(", {} {}", key, value);
  return text;
}

Status CheckSame(const VersionPart& one, const VersionPart& other) {
  const std::string ours = Describe(one.index);
  const std::string theirs = Describe(other.index);
  if (ours == theirs) return OkStatus();
  return InvalidArgumentError(
      "{} and {} are parts of different versions, expected the same of both, found '{}' and '{}'",
      one.folder, other.folder, ours, theirs);
}

// 2. Returns the moves, in the order of the numbers, and fills the version's `index`.
Result<std::vector<Move>> PlanMoves(const std::vector<VersionPart>& parts, VersionIndex& index) {
  size_t total = 0;
  for (const VersionPart& part : parts) total += ShardsOf(part.index).size();
  if (total > limits::kCheckpointFilesMax) {
    return InvalidArgumentError("version {} has {} shards in {} parts, at most {} are read",
                                index.version, total, parts.size(), limits::kCheckpointFilesMax);
  }
  std::vector<Move> moves;
  std::map<std::string, const VersionPart*> owners;  // of tensors
  for (const VersionPart& part : parts) {
    DWS_RETURN_IF_ERROR(CheckSame(parts.front(), part));
    std::map<std::string, std::string> renamed;
    for (const std::string& shard : ShardsOf(part.index)) {
      renamed[shard] = safetensors::MakeShardName({.number = moves.size(), .total = total});
      moves.push_back({.from = part.folder + "/" + shard, .name = renamed[shard]});
    }
    for (const auto& [tensor, shard] : part.index.weight_map) {
      const auto [owner, is_new] = owners.emplace(tensor, &part);
      if (!is_new) {
        return InvalidArgumentError(
            "tensor '{}' is in two parts of version {}, {} and {}: each tensor has to be of one "
            "rank only",
            tensor, index.version, owner->second->folder, part.folder);
      }
      index.weight_map[tensor] = renamed[shard];
    }
  }
  return moves;
}

}  // namespace

Result<VersionPart> ReadPart(FileSystem& files, const std::string& folder, uint64_t version) {
  const std::string path = folder + "/" + safetensors::kIndexFile;
  const auto text = files.ReadFile(path, limits::kCheckpointIndexBytesMax);
  if (absl::IsNotFound(text.status())) {
    return UnavailableError("{} has no index: the part is not complete yet", folder);
  }
  DWS_RETURN_IF_ERROR(text.status());
  DWS_ASSIGN_OR_RETURN(VersionIndex index, ParseVersionIndex(AsText(*text), version, path));
  for (const std::string& shard : ShardsOf(index)) {
    if (safetensors::ParseShardName(shard).has_value()) continue;
    return DataLossError("{}: names '{}', expected shards as model-00000-of-00001.safetensors",
                         path, shard);
  }
  return VersionPart{.folder = folder, .index = std::move(index)};
}

Result<VersionSummary> JoinParts(FileSystem& files, const std::string& parent,
                                 const JoinOptions& options,
                                 const std::vector<VersionPart>& parts) {
  DWS_CHECK(!parts.empty());
  const VersionIndex& first = parts.front().index;
  VersionIndex index{.version = options.version, .delta = first.delta, .extra = first.extra};
  DWS_ASSIGN_OR_RETURN(const std::vector<Move> moves, PlanMoves(parts, index));
  DWS_ASSIGN_OR_RETURN(const std::string text, MakeVersionIndex(index));
  DWS_ASSIGN_OR_RETURN(const std::string path,
                       BeginVersionFolder(files, parent, options.version, options.writer));
  for (const Move& move : moves) {
    DWS_RETURN_IF_ERROR(files.Rename(move.from, path + "/" + move.name));
  }
  for (const auto& [name, bytes] : options.side_files) {
    DWS_RETURN_IF_ERROR(files.ReplaceFile(path + "/" + name, bytes));
  }
  DWS_FAILPOINT("slime.write.before_index");
  DWS_RETURN_IF_ERROR(files.ReplaceFile(path + "/" + safetensors::kIndexFile, AsBytes(text)));
  if (options.may_publish) DWS_RETURN_IF_ERROR(options.may_publish());
  DWS_RETURN_IF_ERROR(PublishVersionFolder(files, parent, options.version, options.writer));
  return VersionSummary{.tensor_count = index.weight_map.size(), .shard_count = moves.size()};
}

}  // namespace dws::slime
