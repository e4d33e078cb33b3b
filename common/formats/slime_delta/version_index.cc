#include "common/formats/slime_delta/version_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/formats/safetensors/checkpoint_index.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

constexpr std::string_view kFolderPrefix = "weight_v";
constexpr const char* kVersion = "version";
constexpr const char* kBaseVersion = "base_version";
constexpr const char* kEncoding = "delta_encoding";
constexpr const char* kCompression = "compression_format";
constexpr const char* kChecksum = "checksum_format";
constexpr const char* kZstd = "zstd";
constexpr std::array kKeys = {kVersion, kBaseVersion, kEncoding, kCompression, kChecksum};

bool IsKey(std::string_view name) {
  return std::find(kKeys.begin(), kKeys.end(), name) != kKeys.end();
}

// Removes a member from the metadata and returns it.
Result<std::string> Take(std::map<std::string, std::string>& metadata, const char* key,
                         const std::string& what) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return DataLossError("{}: its metadata has no {}", what, key);
  std::string value = std::move(found->second);
  metadata.erase(found);
  return value;
}

Result<uint64_t> TakeVersion(std::map<std::string, std::string>& metadata, const char* key,
                             const std::string& what) {
  DWS_ASSIGN_OR_RETURN(const std::string text, Take(metadata, key, what));
  const std::optional<uint64_t> version = ParseVersionText(text);
  if (!version.has_value()) return DataLossError("{}: its {} is '{}'", what, key, text);
  return *version;
}

Result<DeltaDescription> TakeDelta(std::map<std::string, std::string>& metadata,
                                   const std::string& what) {
  DeltaDescription delta;
  DWS_ASSIGN_OR_RETURN(delta.base_version, TakeVersion(metadata, kBaseVersion, what));
  DWS_ASSIGN_OR_RETURN(const std::string encoding, Take(metadata, kEncoding, what));
  DWS_ASSIGN_OR_RETURN(const std::string compression, Take(metadata, kCompression, what));
  DWS_ASSIGN_OR_RETURN(const std::string checksum, Take(metadata, kChecksum, what));
  const std::optional<Encoding> known_encoding = EncodingNamed(encoding);
  const std::optional<ChecksumFormat> known_checksum = ChecksumFormatNamed(checksum);
  if (!known_encoding.has_value() || !known_checksum.has_value() || compression != kZstd) {
    return UnimplementedError(
        "{}: {} '{}', {} '{}', {} '{}'; known are xor, overwrite and xor_sparse, zstd, xxh3-128, "
        "blake3 and adler32",
        what, kEncoding, encoding, kCompression, compression, kChecksum, checksum);
  }
  delta.encoding = *known_encoding;
  delta.checksum = *known_checksum;
  return delta;
}

}  // namespace

std::string VersionIndex::Extra(const std::string& key) const {
  const auto found = extra.find(key);
  return found == extra.end() ? "" : found->second;
}

std::string VersionText(uint64_t version) { return fmt::format("{:06d}", version); }

std::optional<uint64_t> ParseVersionText(std::string_view text) {
  uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (version > limits::kSlimeVersionMax) return std::nullopt;
  return version;
}

std::string VersionFolderName(uint64_t version) {
  return std::string(kFolderPrefix) + VersionText(version);
}

std::optional<uint64_t> ParseVersionFolderName(std::string_view name) {
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  const std::optional<uint64_t> version = ParseVersionText(name.substr(kFolderPrefix.size()));
  // Accept only the canonical form, so that two folders never mean one version.
  if (!version.has_value() || VersionFolderName(*version) != name) return std::nullopt;
  return version;
}

Result<VersionIndex> ParseVersionIndex(std::string_view text, uint64_t folder_version,
                                       const std::string& what) {
  DWS_ASSIGN_OR_RETURN(safetensors::CheckpointIndex parsed, safetensors::ParseIndex(text, what));
  for (const char* const key : kKeys) {
    if (parsed.other_metadata.contains(key)) {
      return DataLossError("{}: its {} is not a string", what, key);
    }
  }
  VersionIndex index{.version = folder_version, .weight_map = std::move(parsed.weight_map)};
  std::map<std::string, std::string>& metadata = parsed.metadata;
  const bool has_delta = metadata.contains(kEncoding);
  if (has_delta || metadata.contains(kVersion)) {
    DWS_ASSIGN_OR_RETURN(const uint64_t version, TakeVersion(metadata, kVersion, what));
    if (version != folder_version) {
      return DataLossError("{}: is for version {}, but its folder is for version {}", what,
                           VersionText(version), VersionText(folder_version));
    }
  }
  if (!has_delta) {
    for (const char* const key : {kBaseVersion, kCompression, kChecksum}) {
      if (metadata.contains(key)) {
        return DataLossError("{}: has a {} and no {}: neither a delta nor a full checkpoint", what,
                             key, kEncoding);
      }
    }
    index.extra = std::move(metadata);
    return index;
  }
  DWS_ASSIGN_OR_RETURN(index.delta, TakeDelta(metadata, what));
  if (index.version == 0 || index.delta->base_version + 1 != index.version) {
    return DataLossError("{}: version {} on base {}, expected the version before as its base", what,
                         VersionText(index.version), VersionText(index.delta->base_version));
  }
  index.extra = std::move(metadata);
  return index;
}

Result<std::string> MakeVersionIndex(const VersionIndex& index) {
  safetensors::CheckpointIndex made{.metadata = index.extra, .weight_map = index.weight_map};
  for (const auto& [key, value] : index.extra) {
    if (IsKey(key)) return InvalidArgumentError("metadata '{}' is reserved by the format", key);
  }
  made.metadata[kVersion] = VersionText(index.version);
  if (index.delta.has_value()) {
    made.metadata[kBaseVersion] = VersionText(index.delta->base_version);
    made.metadata[kEncoding] = NameOf(index.delta->encoding);
    made.metadata[kCompression] = kZstd;
    made.metadata[kChecksum] = NameOf(index.delta->checksum);
  }
  return safetensors::MakeIndex(made);
}

Result<ChainStep> NextStep(uint64_t local_version, const VersionIndex& index) {
  if (index.version == local_version && local_version != 0) return ChainStep::kApplied;
  if (!index.delta.has_value()) return ChainStep::kReset;
  if (index.delta->base_version == local_version) return ChainStep::kApply;
  return FailedPreconditionError(
      "version {} is a delta of {}, and the local checkpoint is at {}: it needs version {}, or a "
      "full "
      "checkpoint",
      VersionText(index.version), VersionText(index.delta->base_version),
      VersionText(local_version), VersionText(local_version + 1));
}

}  // namespace dws::slime
