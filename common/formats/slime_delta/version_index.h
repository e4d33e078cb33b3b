// The names and the index of a version folder, and which version may follow which. Pure.
//
//   weight_v000002/model.safetensors.index.json
//   {"metadata": {"version": "000002", "base_version": "000001", "delta_encoding": "xor",
//                 "compression_format": "zstd", "checksum_format": "xxh3-128"},
//    "weight_map": {tensor: file}}
//
// An index without delta_encoding is a full checkpoint: the chain begins again with it. If it has a
// checksum_format, as ModelExpress's have, its shards have the digest of each tensor, as those of
// deltas do.
//
// Some writers give versions names that are not numbers, for example ModelExpress's unique ids.
// Then the folder's number gives the order, and a delta must name the version with the number
// before as its base.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/formats/safetensors/claim_limits.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/payload.h"

namespace dws::slime {

// How the entries of a delta are encoded. Version 0 is the base checkpoint, which is never
// published.
struct DeltaDescription {
  uint64_t base_version = 0;
  std::string base_name = {};  // if the version has a name
  Encoding encoding = Encoding::kXor;
  ChecksumFormat checksum = ChecksumFormat::kXxh3;

  friend bool operator==(const DeltaDescription&, const DeltaDescription&) = default;
};

// The contents of an index.
struct VersionIndex {
  uint64_t version = 0;
  std::string name = {};                          // if it is not its number
  std::optional<DeltaDescription> delta;          // nullopt: a full checkpoint
  std::map<std::string, std::string> weight_map;  // tensor to file
  std::map<std::string, std::string> extra;       // metadata that the format does not define
  // The format of the digests in a full checkpoint's shards; nullopt: they have none.
  std::optional<ChecksumFormat> full_checksum = {};

  std::string Extra(const std::string& key) const;  // empty: there is no such member
};

// The key in the metadata of an index that dws-sender wrote: the stream of the version.
inline constexpr const char* kStreamKey = "dws_stream";

std::string VersionText(uint64_t version);                        // "000002"
std::optional<uint64_t> ParseVersionText(std::string_view text);  // only digits, within limits.h
std::string VersionFolderName(uint64_t version);                  // "weight_v000002"
std::optional<uint64_t> ParseVersionFolderName(std::string_view name);

// DATA_LOSS: `text` is not such an index, its version differs from the folder's, it is a delta
// whose base is not the version before, or its description is incomplete. UNIMPLEMENTED: an unknown
// encoding, compression or checksum. Other errors come from `claims`. `what` names the index in
// messages.
Result<VersionIndex> ParseVersionIndex(std::string_view text, uint64_t folder_version,
                                       const std::string& what,
                                       const safetensors::ClaimLimits& claims = {});
// INVALID_ARGUMENT: names that are not UTF-8, or extra metadata with keys that the format defines.
Result<std::string> MakeVersionIndex(const VersionIndex& index);

enum class ChainStep : uint8_t {
  kApplied,  // the index is of the local version
  kApply,    // a delta of the local version
  kReset,    // a full checkpoint
};
// Returns what to do with a version. FAILED_PRECONDITION: it is a delta whose base is not the local
// version; the message says which version is needed.
Result<ChainStep> NextStep(uint64_t local_version, const VersionIndex& index);

}  // namespace dws::slime
