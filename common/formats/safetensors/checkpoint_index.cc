#include "common/formats/safetensors/checkpoint_index.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kOf = "-of-";
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

}  // namespace

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

Result<CheckpointIndex> ParseIndex(std::string_view text, const std::string& what) {
  DWS_ASSIGN_OR_RETURN(const nlohmann::json root, ParseStrictJson(text, what));
  if (!root.is_object() || !root.contains("weight_map")) {
    return DataLossError("{}: expected an object with a weight_map", what);
  }
  CheckpointIndex index;
  DWS_ASSIGN_OR_RETURN(index.weight_map, StringMembers(root["weight_map"], what + ", weight_map"));
  if (index.weight_map.size() > limits::kTensorsMax) {
    return ResourceExhaustedError("{}: {} tensors, at most {} are allowed", what,
                                  index.weight_map.size(), limits::kTensorsMax);
  }
  for (const auto& [name, file] : index.weight_map) {
    if (name.size() > limits::kTensorNameBytesMax) {
      return ResourceExhaustedError("{}: a tensor's name has {} bytes, at most {} are allowed",
                                    what, name.size(), limits::kTensorNameBytesMax);
    }
    if (!IsShardName(file)) {
      return DataLossError(
          "{}: tensor '{}' is listed in '{}', expected a .safetensors file in the same folder",
          what, name, file);
    }
  }
  const auto metadata = root.find("metadata");
  if (metadata == root.end()) return index;
  if (!metadata->is_object()) return DataLossError("{}: its metadata is not an object", what);
  for (const auto& [key, value] : metadata->items()) {
    if (value.is_string()) {
      index.metadata.emplace(key, value.get<std::string>());
    } else {
      index.other_metadata.insert(key);
    }
  }
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
