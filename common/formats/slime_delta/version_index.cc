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
constexpr size_t kNameBytesMax = 256;  // of a version
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

// Without a letter it would be a damaged number.
bool IsName(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return text.size() <= kNameBytesMax && std::any_of(text.begin(), text.end(), letter);
}

// A version as metadata states it: a number, or a name.
struct StatedVersion {
  std::optional<uint64_t> number;
  std::string text;
};

Result<StatedVersion> TakeVersion(std::map<std::string, std::string>& metadata, const char* key,
                                  const std::string& what) {
  DWS_ASSIGN_OR_RETURN(std::string text, Take(metadata, key, what));
  const std::optional<uint64_t> number = ParseVersionText(text);
  if (number.has_value() || IsName(text)) {
    return StatedVersion{.number = number, .text = std::move(text)};
  }
  return DataLossError(
      "{}: its {} is '{}', expected a number up to {}, or a name with a letter and of {} bytes at "
      "most",
      what, key, text.substr(0, kNameBytesMax), limits::kSlimeVersionMax, kNameBytesMax);
}

// The delta of `version`; sets its base.
Result<DeltaDescription> TakeDelta(std::map<std::string, std::string>& metadata,
                                   const VersionIndex& version, const std::string& what) {
  DeltaDescription delta;
  DWS_ASSIGN_OR_RETURN(StatedVersion base, TakeVersion(metadata, kBaseVersion, what));
  const uint64_t before = version.version - 1;
  if (version.version == 0 || (version.name.empty() && base.number != before)) {
    return DataLossError("{}: version {} on base {}, expected the version before as its base", what,
                         VersionText(version.version), base.text);
  }
  delta.base_version = before;
  if (!version.name.empty()) delta.base_name = std::move(base.text);
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
                                       const std::string& what,
                                       const safetensors::ClaimLimits& claims) {
  DWS_ASSIGN_OR_RETURN(safetensors::CheckpointIndex parsed,
                       safetensors::ParseIndex(text, what, claims));
  for (const char* const key : kKeys) {
    if (parsed.other_metadata.contains(key)) {
      return DataLossError("{}: its {} is not a string", what, key);
    }
  }
  VersionIndex index{.version = folder_version, .weight_map = std::move(parsed.weight_map)};
  std::map<std::string, std::string>& metadata = parsed.metadata;
  const bool has_delta = metadata.contains(kEncoding);
  if (has_delta || metadata.contains(kVersion)) {
    DWS_ASSIGN_OR_RETURN(StatedVersion version, TakeVersion(metadata, kVersion, what));
    if (!version.number.has_value()) {
      index.name = std::move(version.text);
    } else if (*version.number != folder_version) {
      return DataLossError("{}: is for version {}, but its folder is for version {}", what,
                           VersionText(*version.number), VersionText(folder_version));
    }
  }
  if (!has_delta) {
    for (const char* const key : {kBaseVersion, kCompression}) {
      if (metadata.contains(key)) {
        return DataLossError("{}: has a {} and no {}: neither a delta nor a full checkpoint", what,
                             key, kEncoding);
      }
    }
    if (metadata.contains(kChecksum)) {
      DWS_ASSIGN_OR_RETURN(const std::string checksum, Take(metadata, kChecksum, what));
      index.full_checksum = ChecksumFormatNamed(checksum);
      if (!index.full_checksum.has_value()) {
        return UnimplementedError("{}: {} '{}'; known are xxh3-128, blake3 and adler32", what,
                                  kChecksum, checksum);
      }
    }
    index.extra = std::move(metadata);
    return index;
  }
  DWS_ASSIGN_OR_RETURN(index.delta, TakeDelta(metadata, index, what));
  index.extra = std::move(metadata);
  return index;
}

Result<std::string> MakeVersionIndex(const VersionIndex& index) {
  safetensors::CheckpointIndex made{.metadata = index.extra, .weight_map = index.weight_map};
  for (const auto& [key, value] : index.extra) {
    if (IsKey(key)) return InvalidArgumentError("metadata '{}' is reserved by the format", key);
  }
  const auto stated = [](uint64_t number, const std::string& name) {
    return name.empty() ? VersionText(number) : name;
  };
  made.metadata[kVersion] = stated(index.version, index.name);
  if (index.delta.has_value()) {
    made.metadata[kBaseVersion] = stated(index.delta->base_version, index.delta->base_name);
    made.metadata[kEncoding] = NameOf(index.delta->encoding);
    made.metadata[kCompression] = kZstd;
    made.metadata[kChecksum] = NameOf(index.delta->checksum);
  }
  if (index.full_checksum.has_value()) made.metadata[kChecksum] = NameOf(*index.full_checksum);
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
