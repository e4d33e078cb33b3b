#include "common/formats/safetensors/checkpoint_index.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexEnding = ".safetensors.index.json";
// Prefix of files that have the same weights by other names.
constexpr std::string_view kConsolidated = "consolidated";
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kWeightMap = "weight_map";
constexpr std::string_view kMetadata = "metadata";
constexpr size_t kNumberDigits = 5;

// Removes the digits at the end of `text` and returns their number; nullopt for fewer than five
// digits, because "%05d" writes at least five.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  const size_t last_other = text.find_last_not_of("0123456789");
  const size_t begin = last_other == std::string_view::npos ? 0 : last_other + 1;
  const std::string_view digits = text.substr(begin);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.size() < kNumberDigits || error != std::errc()) return std::nullopt;
  text.remove_suffix(digits.size());
  return number;
}

// Adds a member of the weight_map.
Status AddTensor(CheckpointIndex& index, const std::string& name, const nlohmann::json& value,
                 const std::string& what, const ClaimLimits& claims) {
  if (index.weight_map.size() >= claims.tensors_max) {
    return ResourceExhaustedError("{}: more than the {} tensors allowed", what, claims.tensors_max);
  }
  if (name.size() > limits::kTensorNameBytesMax) {
    return ResourceExhaustedError("{}: a tensor's name has {} bytes, at most {} are allowed", what,
                                  name.size(), limits::kTensorNameBytesMax);
  }
  DWS_RETURN_IF_ERROR(AddString(index.weight_map, name, value, what + ", weight_map"));
  const std::string& file = index.weight_map[name];
  if (IsShardName(file)) return OkStatus();
  return DataLossError(
      "{}: tensor '{}' is listed in '{}', expected a .safetensors file in the same folder", what,
      name, file);
}

}  // namespace

Result<WeightFiles> WeightFilesAmong(const std::vector<std::string>& listed,
                                     const std::string& folder) {
  WeightFiles found;
  std::vector<std::string> indexes;
  for (const std::string& name : listed) {
    if (name.ends_with(kIndexEnding) && name.front() != '.') indexes.push_back(name);
    if (IsShardName(name)) found.shards.push_back(name);
  }
  const auto is_shard = [](const std::string& name) { return !name.starts_with(kConsolidated); };
  if (std::any_of(found.shards.begin(), found.shards.end(), is_shard)) {
    std::erase_if(found.shards, std::not_fn(is_shard));
    std::erase_if(indexes, std::not_fn(is_shard));
  }
  const auto is_there = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_there(indexes, kIndexFile)) {
    found.index = kIndexFile;
  } else if (!is_there(found.shards, kSingleFile) && !indexes.empty()) {
    if (indexes.size() > 1) {
      return DataLossError("{}: has the indexes {} and {}, expected {} or only one", folder,
                           indexes[0], indexes[1], kIndexFile);
    }
    found.index = indexes.front();
  }
  return found;
}

bool IsShardName(std::string_view name) {
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name.front() != '.' &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

std::optional<ShardNumber> ParseShardName(std::string_view name) {
  if (!IsShardName(name)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  const std::optional<uint64_t> total = TakeNumber(name);
  if (!total.has_value() || !name.ends_with(kOf)) return std::nullopt;
  name.remove_suffix(kOf.size());
  const std::optional<uint64_t> number = TakeNumber(name);
  if (!number.has_value() || !name.ends_with('-')) return std::nullopt;
  return ShardNumber{.number = *number, .total = *total};
}

std::string MakeShardName(ShardNumber shard) {
  return fmt::format("model-{:05d}-of-{:05d}.safetensors", shard.number, shard.total);
}

Result<CheckpointIndex> ParseIndex(std::string_view text, const std::string& what,
                                   const ClaimLimits& claims) {
  CheckpointIndex index;
  bool has_map = false;
  bool map_is_object = true;
  bool metadata_is_object = true;
  const auto on_member = [&](const std::string& parent, const std::string& key,
                             nlohmann::json value) -> Status {
    if (parent == kWeightMap) return AddTensor(index, key, value, what, claims);
    if (parent == kMetadata) {
      if (index.metadata.size() + index.other_metadata.size() >= limits::kTensorsMax) {
        return ResourceExhaustedError("{}: more than the {} members of metadata allowed", what,
                                      limits::kTensorsMax);
      }
      if (value.is_string()) {
        index.metadata.emplace(key, value.get<std::string>());
      } else {
        index.other_metadata.insert(key);
      }
      return OkStatus();
    }
    if (key == kWeightMap) has_map = true, map_is_object = value.is_object();
    if (key == kMetadata) metadata_is_object = value.is_object();
    return OkStatus();
  };
  const Status read = ReadStrictMembers(
      text, what,
      {.opens = [](const std::string& key) { return key == kWeightMap || key == kMetadata; },
       .on_member = on_member});
  DWS_RETURN_IF_ERROR(read);
  if (!has_map) return DataLossError("{}: expected an object with a weight_map", what);
  if (!map_is_object) return DataLossError("{}, weight_map: expected an object of strings", what);
  if (!metadata_is_object) return DataLossError("{}: its metadata is not an object", what);
  return index;
}

Result<std::string> MakeIndex(const CheckpointIndex& index) {
  for (const auto& [key, value] : index.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) return InvalidArgumentError("metadata that is not UTF-8");
  }
  for (const auto& [name, file] : index.weight_map) {
    if (!IsUtf8(name) || !IsUtf8(file)) {
      return InvalidArgumentError("a tensor's name in an index is not UTF-8");
    }
  }
  nlohmann::ordered_json root;
  root["metadata"] = nlohmann::ordered_json(index.metadata);
  root["weight_map"] = nlohmann::json(index.weight_map);
  return root.dump(1);
}

}  // namespace dws::safetensors
