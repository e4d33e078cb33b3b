// model.safetensors.index.json: which tensor lies in which file of a folder. Pure.
//
// HuggingFace writes numbers into its metadata, slime writes strings only; this reads both.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws::safetensors {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

struct CheckpointIndex {
  std::map<std::string, std::string> metadata;    // the strings of it
  std::set<std::string> other_metadata;           // the keys of what is no string; not written
  std::map<std::string, std::string> weight_map;  // tensor to file
};

// DATA_LOSS: no such JSON, or a file name that leads out of the folder. RESOURCE_EXHAUSTED: more
// tensors or longer names than limits.h allows. `what` names it in messages.
Result<CheckpointIndex> ParseIndex(std::string_view text, const std::string& what);

// The text of an index with these members; metadata as strings. INVALID_ARGUMENT: no UTF-8.
Result<std::string> MakeIndex(const CheckpointIndex& index);
// The same as HuggingFace writes it: {"total_size": total_bytes} is the metadata.
Result<std::string> MakeIndex(const std::map<std::string, std::string>& weight_map,
                              uint64_t total_bytes);

// Whether `name` is a file's name ending in ".safetensors", in the folder and not elsewhere.
bool IsShardName(std::string_view name);

// "model-00002-of-00007.safetensors" is 2 of 7; nullopt for other names.
struct ShardNumber {
  uint64_t number = 0;
  uint64_t total = 0;
};
std::optional<ShardNumber> ParseShardName(std::string_view name);
std::string MakeShardName(ShardNumber shard);

}  // namespace dws::safetensors
