// Reads JSON from files of other programs, strictly and within limits.
//
// nlohmann's parser silently keeps the last of two equal keys. In a header of offsets, two readers
// could then see different contents in the same file. All code in common/formats that reads JSON
// uses this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// The most values that one member has which ReadStrictMembers hands over.
inline constexpr size_t kJsonMemberValuesMax = 65'536;

// The functions to which ReadStrictMembers hands what it reads.
struct MemberReader {
  // Called for each key of the top object, before its value. Returns whether the members of that
  // value, if it is an object, are also handed over one by one. May be empty.
  std::function<bool(const std::string& key)> opens = nullptr;
  // Called for each member as soon as its value is complete; `parent` is the key of the object that
  // it is in, empty for the top object. An object that was opened is then handed over empty. An
  // error ends the reading.
  std::function<Status(const std::string& parent, const std::string& key, nlohmann::json value)>
      on_member = nullptr;
};

// Reads the object in `text` member by member, so that at most one member is in memory at a time.
// Errors as ParseStrictJson, and of on_member. DATA_LOSS: not an object. RESOURCE_EXHAUSTED also
// for more than kJsonMemberValuesMax values in one member.
Status ReadStrictMembers(std::string_view text, const std::string& what,
                         const MemberReader& reader);

// A whole number from 0 to 2^64-1, written without sign, point or exponent; nullopt for others.
std::optional<uint64_t> WholeNumber(const nlohmann::json& value);

// All members of `object`, which must be an object of strings. DATA_LOSS names the one that is not.
Result<std::map<std::string, std::string>> StringMembers(const nlohmann::json& object,
                                                         const std::string& what);

// Adds one member of such an object. DATA_LOSS: not a string.
Status AddString(std::map<std::string, std::string>& members, const std::string& key,
                 const nlohmann::json& value, const std::string& what);

// Returns whether all of `text` is UTF-8. Other text cannot be written as JSON.
bool IsUtf8(std::string_view text);

}  // namespace dws
