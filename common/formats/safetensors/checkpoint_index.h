// model.safetensors.index.json: which tensor is in which file of a folder. Pure.
//
// HuggingFace writes numbers into the metadata, slime writes only strings; this reads both.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/formats/safetensors/claim_limits.h"

namespace dws::safetensors {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";  // of a checkpoint without an index

// The contents of an index.
struct CheckpointIndex {
  std::map<std::string, std::string> metadata;    // members that are strings
  std::set<std::string> other_metadata;           // keys of the other members; not written
  std::map<std::string, std::string> weight_map;  // tensor to file
};

// DATA_LOSS: `text` is not the JSON of an index, or a file name leads out of the folder.
// RESOURCE_EXHAUSTED: more tensors or longer names than limits.h allows. `what` names the index in
// messages. Other errors come from `claims`.
Result<CheckpointIndex> ParseIndex(std::string_view text, const std::string& what,
                                   const ClaimLimits& claims = {});

// The text of an index; metadata is written as strings. INVALID_ARGUMENT: a text that is not UTF-8.
Result<std::string> MakeIndex(const CheckpointIndex& index);

// The files of a folder that hold its checkpoint. The rules are in checkpoint.h.
struct WeightFiles {
  std::optional<std::string> index;  // the one that decides
  std::vector<std::string> shards;   // files ending in ".safetensors", without those left aside
};
// `listed`: the names in `folder`, sorted. DATA_LOSS: there are several indexes, and no rule
// chooses one.
Result<WeightFiles> WeightFilesAmong(const std::vector<std::string>& listed,
                                     const std::string& folder);

// Returns whether `name` ends in ".safetensors" and names a file in the folder itself.
bool IsShardName(std::string_view name);

// "model-00002-of-00007.safetensors" is 2 of 7; nullopt for other names.
struct ShardNumber {
  uint64_t number = 0;
  uint64_t total = 0;
};
std::optional<ShardNumber> ParseShardName(std::string_view name);
std::string MakeShardName(ShardNumber shard);

}  // namespace dws::safetensors
