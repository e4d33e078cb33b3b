#include "common/formats/slime_delta/version_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/fit.h"
#include "common/formats/slime_delta/windows.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

constexpr uint64_t kProgressBytes = uint64_t{64} << 20;  // read between two signs of progress

std::string LastPart(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// The folder must have exactly the shards that the index names. If shards are numbered, the numbers
// go from 0 without a gap.
Status CheckShards(const std::vector<std::string>& listed, const VersionIndex& index,
                   const std::string& folder) {
  std::set<std::string> named;
  for (const auto& [tensor, file] : index.weight_map) named.insert(file);
  for (const std::string& file : named) {
    if (!std::binary_search(listed.begin(), listed.end(), file)) {
      return UnavailableError("{}: the index names {}, which does not exist (yet): try again later",
                              folder, file);
    }
  }
  if (!index.delta.has_value()) return OkStatus();
  for (const std::string& name : listed) {
    if (safetensors::IsShardName(name) && !named.contains(name)) {
      return DataLossError("{}: has a shard {} that its index does not name", folder, name);
    }
  }
  uint64_t next = 0;
  for (const std::string& file : named) {  // the names sort by number
    const auto shard = safetensors::ParseShardName(file);
    if (!shard.has_value()) continue;
    if (shard->total != named.size() || shard->number != next++) {
      return DataLossError("{}: {} among {} shards, expected numbers from 00000 without a gap",
                           folder, file, named.size());
    }
  }
  return OkStatus();
}

std::vector<uint64_t> VersionsAmong(const std::vector<std::string>& names) {
  std::vector<uint64_t> versions;
  for (const std::string& name : names) {
    if (const auto version = ParseVersionFolderName(name)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

// Returns whether these files are a full checkpoint without an index.
bool IsSingle(const std::vector<std::string>& listed) {
  const auto found = safetensors::WeightFilesAmong(listed, "");
  return found.ok() && !found->index.has_value() &&
         found->shards == std::vector<std::string>{safetensors::kSingleFile};
}

// `text` is the index as it was read.
Result<VersionIndex> IndexOf(const std::string& version_folder,
                             const Result<std::vector<std::byte>>& text,
                             const safetensors::ClaimLimits& claims) {
  const std::optional<uint64_t> version = ParseVersionFolderName(LastPart(version_folder));
  if (!version.has_value()) {
    return InvalidArgumentError("expected a version folder, as weight_v000001, found {}",
                                version_folder);
  }
  if (absl::IsNotFound(text.status())) {
    return UnavailableError("{} has no index: it is not published yet", version_folder);
  }
  DWS_RETURN_IF_ERROR(text.status());
  return ParseVersionIndex(AsText(*text), *version, version_folder + "/" + safetensors::kIndexFile,
                           claims);
}

}  // namespace

Result<std::vector<uint64_t>> ListVersions(FileSystem& files, const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  return VersionsAmong(names);
}

Result<std::vector<uint64_t>> ListVersions(const HeldFolder& folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.List());
  return VersionsAmong(names);
}

Result<std::optional<FileStamp>> StampOfVersion(const HeldFolder& versions, uint64_t version) {
  const std::string folder = VersionFolderName(version) + "/";
  DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> index,
                       versions.Stamp(folder + safetensors::kIndexFile));
  if (index.has_value()) return index;
  return versions.Stamp(folder + safetensors::kSingleFile);
}

Result<VersionIndex> ReadVersionIndex(FileSystem& files, const std::string& version_folder,
                                      const safetensors::ClaimLimits& claims) {
  const auto listed = files.List(version_folder);
  const auto version = ParseVersionFolderName(LastPart(version_folder));
  if (version.has_value() && listed.ok() && IsSingle(*listed)) {
    return VersionIndex{.version = *version};
  }
  return IndexOf(
      version_folder,
      files.ReadFile(version_folder + "/" + safetensors::kIndexFile, claims.index_bytes_max),
      claims);
}

Result<VersionFolder> VersionFolder::Open(const std::string& version_folder) {
  Result<HeldFolder> folder = HeldFolder::Open(version_folder);
  if (absl::IsNotFound(folder.status())) {
    return UnavailableError("{}: it is not published yet", Message(folder.status()));
  }
  DWS_RETURN_IF_ERROR(folder.status());
  return OpenHeld(*std::move(folder), nullptr);
}

Result<VersionFolder> VersionFolder::Open(const HeldFolder& versions, uint64_t version,
                                          const safetensors::Checkpoint& local) {
  DWS_ASSIGN_OR_RETURN(HeldFolder folder, versions.OpenFolder(VersionFolderName(version)));
  return OpenHeld(std::move(folder), &local);
}

Result<VersionFolder> VersionFolder::OpenHeld(HeldFolder folder,
                                              const safetensors::Checkpoint* local) {
  VersionFolder opened(std::move(folder));
  const Status read = opened.Read(local);
  // Check this first: an error that comes from a mixture of two folders must not be reported.
  DWS_RETURN_IF_ERROR(opened.folder_.CheckUnchanged());
  DWS_RETURN_IF_ERROR(read);
  return opened;
}

const FileStamp& VersionFolder::index_stamp() const {
  return folder_.StampRead(single_ ? safetensors::kSingleFile : safetensors::kIndexFile);
}

Status VersionFolder::Read(const safetensors::Checkpoint* local) {
  const safetensors::ClaimLimits claims =
      local != nullptr ? IndexLimits(*local) : safetensors::ClaimLimits();
  const auto text = folder_.ReadFile(safetensors::kIndexFile, claims.index_bytes_max);
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> listed, folder_.List());
  if (absl::IsNotFound(text.status()) && IsSingle(listed)) {
    DWS_RETURN_IF_ERROR(ReadSingle(local != nullptr ? ShardLimits(*local, index_) : claims));
    return CheckSame(listed, std::nullopt);
  }
  DWS_ASSIGN_OR_RETURN(index_, IndexOf(folder_.path(), text, claims));
  if (local != nullptr) DWS_RETURN_IF_ERROR(CheckNames(*local, index_));
  DWS_RETURN_IF_ERROR(CheckShards(listed, index_, folder_.path()));
  if (!index_.weight_map.empty()) {
    Result<safetensors::Checkpoint> checkpoint = safetensors::Checkpoint::Open(
        folder_, FileAccess::kUnmapped, local != nullptr ? ShardLimits(*local, index_) : claims);
    if (absl::IsNotFound(checkpoint.status())) {  // removed since the folder was listed
      return UnavailableError("{}: {}", folder_.path(), Message(checkpoint.status()));
    }
    DWS_RETURN_IF_ERROR(checkpoint.status());
    checkpoint_ = *std::move(checkpoint);
  } else if (!index_.delta.has_value()) {
    return DataLossError("{}: a full checkpoint without tensors", folder_.path());
  }
  DWS_RETURN_IF_ERROR(ReadEntries());
  return CheckSame(listed, *text);
}

Status VersionFolder::ReadSingle(const safetensors::ClaimLimits& claims) {
  single_ = true;
  const std::string& path = folder_.path();
  const std::optional<uint64_t> version = ParseVersionFolderName(LastPart(path));
  if (!version.has_value()) {
    return InvalidArgumentError("expected a version folder, as weight_v000001, found {}", path);
  }
  Result<safetensors::Checkpoint> checkpoint =
      safetensors::Checkpoint::Open(folder_, FileAccess::kUnmapped, claims);
  if (absl::IsDataLoss(checkpoint.status()) || absl::IsNotFound(checkpoint.status())) {
    return UnavailableError("{}: has no index, and its {} is not complete (yet): {}", path,
                            safetensors::kSingleFile, Message(checkpoint.status()));
  }
  DWS_RETURN_IF_ERROR(checkpoint.status());
  checkpoint_ = *std::move(checkpoint);
  index_.version = *version;
  for (const safetensors::CheckpointTensor& tensor : checkpoint_->tensors()) {
    index_.weight_map[tensor.name] = safetensors::kSingleFile;
  }
  return ReadEntries();
}

Status VersionFolder::CheckSame(const std::vector<std::string>& listed,
                                const std::optional<std::vector<std::byte>>& text) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> listed_again, folder_.List());
  bool same = listed_again == listed;
  if (same && text.has_value()) {
    // Files written within one tick of the clock have the same time, so compare contents too.
    const auto text_again = folder_.ReadFile(safetensors::kIndexFile, text->size());
    if (!absl::IsResourceExhausted(text_again.status())) DWS_RETURN_IF_ERROR(text_again.status());
    same = text_again.ok() && *text_again == *text;
  }
  if (same) return OkStatus();
  return UnavailableError("{} was changed while it was read: read it again", folder_.path());
}

Status VersionFolder::ReadEntries() {
  DWS_ASSIGN_OR_RETURN(std::string all, MakeVersionIndex(index_));
  if (checkpoint_.has_value()) {
    for (const safetensors::CheckpointTensor& tensor : checkpoint_->tensors()) {
      DWS_ASSIGN_OR_RETURN(std::string digest, DigestOf(tensor));
      all += fmt::format("\n{} {}", digest, tensor.name);
      entries_.push_back({.name = tensor.name, .digest = std::move(digest)});
    }
  }
  identity_ = ChecksumText(ChecksumFormat::kXxh3, AsBytes(all));
  return OkStatus();
}

Result<std::string> VersionFolder::DigestOf(const safetensors::CheckpointTensor& tensor) const {
  if (!index_.delta.has_value()) return DigestOfWhole(tensor);
  if (tensor.dtype != safetensors::FileDType::kU8 || tensor.shape.size() != 1) {
    return DataLossError("{}: tensor '{}': expected a list of U8, found {} [{}]", folder_.path(),
                         tensor.name, safetensors::NameOf(tensor.dtype),
                         fmt::join(tensor.shape, ", "));
  }
  return StatedDigest(tensor, index_.delta->checksum);
}

Result<std::string> VersionFolder::DigestOfWhole(
    const safetensors::CheckpointTensor& tensor) const {
  std::string stated;
  if (index_.full_checksum.has_value()) {
    DWS_ASSIGN_OR_RETURN(stated, StatedDigest(tensor, *index_.full_checksum));
  }
  Checksum checksum(ChecksumFormat::kXxh3);
  Checksum of_writer(index_.full_checksum.value_or(ChecksumFormat::kAdler32));
  const auto add = [&](uint64_t offset, MutableByteSpan window) -> Status {
    DWS_RETURN_IF_ERROR(ReadOf(tensor, offset, window));
    checksum.Update(window);
    if (!stated.empty()) of_writer.Update(window);
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(ForEachWindow(tensor.size_bytes, add));
  if (stated.empty() || of_writer.Text() == stated) return checksum.Text();
  return DataLossError("{}: tensor '{}': its {} is {}, its shard says {}: the file is damaged",
                       folder_.path(), tensor.name, NameOf(*index_.full_checksum), of_writer.Text(),
                       stated);
}

Result<std::string> VersionFolder::StatedDigest(const safetensors::CheckpointTensor& tensor,
                                                ChecksumFormat format) const {
  const std::string what = fmt::format("{}: tensor '{}'", folder_.path(), tensor.name);
  const safetensors::Metadata& digests = checkpoint_->files()[tensor.file].metadata;
  const auto digest = digests.find(tensor.name);
  if (digest == digests.end()) return DataLossError("{}: its shard has no digest of it", what);
  if (IsChecksumText(format, digest->second)) return digest->second;
  return DataLossError("{}: its digest '{}' is not a valid {} digest", what, digest->second,
                       NameOf(format));
}

Status VersionFolder::ReadOf(const safetensors::CheckpointTensor& tensor, uint64_t offset,
                             MutableByteSpan to) const {
  if (offset / kProgressBytes != (offset + to.size()) / kProgressBytes) folder_.Progress();
  return checkpoint_->Read(tensor, offset, to);
}

EntrySource VersionFolder::SourceOf(const VersionEntry& entry) const {
  const safetensors::CheckpointTensor* const tensor = checkpoint_->Find(entry.name);
  DWS_CHECK(tensor != nullptr);
  return {.size_bytes = tensor->size_bytes,
          .read = [this, tensor](uint64_t offset, MutableByteSpan to) {
            return ReadOf(*tensor, offset, to);
          }};
}

}  // namespace dws::slime
