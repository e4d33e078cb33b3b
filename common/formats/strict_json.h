// JSON out of other people's files, read strictly and within bounds.
//
// nlohmann's own parser keeps the last of two equal keys without a word; in a header of offsets
// that is how two readers of one file come to see two different files. Used by everything in
// common/formats that reads JSON.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// The one value in `text`; `what` begins every message. DATA_LOSS: no UTF-8, no JSON, or a key that
// an object has twice. RESOURCE_EXHAUSTED: nested deeper than limits::kJsonDepthMax, or more than
// limits::kJsonValuesMax values.
Result<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& what);

// A whole number from 0 to 2^64-1, written without sign, point or exponent.
std::optional<uint64_t> WholeNumber(const nlohmann::json& value);

// All members of `object`, which must be an object of strings. DATA_LOSS names the one that is not.
Result<std::map<std::string, std::string>> StringMembers(const nlohmann::json& object,
                                                         const std::string& what);

// Whether all of `text` is UTF-8: what is not cannot be written as JSON.
bool IsUtf8(std::string_view text);

}  // namespace dws
