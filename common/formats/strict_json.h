// Reads JSON from files of other programs, strictly and within limits.
//
// nlohmann's parser silently keeps the last of two equal keys. In a header of offsets, two readers
// could then see different contents in the same file. All code in common/formats that reads JSON
// uses this.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// The single value in `text`; every message begins with `what`. DATA_LOSS: not UTF-8, not JSON, or
// an object with a duplicate key. RESOURCE_EXHAUSTED: nested deeper than limits::kJsonDepthMax, or
// more than limits::kJsonValuesMax values.
Result<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& what);

// A whole number from 0 to 2^64-1, written without sign, point or exponent; nullopt for others.
std::optional<uint64_t> WholeNumber(const nlohmann::json& value);

// All members of `object`, which must be an object of strings. DATA_LOSS names the one that is not.
Result<std::map<std::string, std::string>> StringMembers(const nlohmann::json& object,
                                                         const std::string& what);

// Whether all of `text` is UTF-8. Other text cannot be written as JSON.
bool IsUtf8(std::string_view text);

}  // namespace dws
