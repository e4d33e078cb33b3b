// Members other than the name are not read: what a file is, its manifest says.
#include "common/transport/http_files/listing.h"

#include <algorithm>

#include "common/base/printable.h"
#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::http_files {
namespace {

constexpr size_t kListingBytesMax = size_t{32} << 20;
constexpr size_t kNameBytesMax = 255;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax && name != "." && name != ".." &&
         std::ranges::none_of(name, [](unsigned char c) { return c == '/' || c < ' '; });
}

Status NoListing(std::string_view found) {
  return UnavailableError(
      "expected the list of a folder, as of nginx with autoindex_format json, found {}", found);
}

}  // namespace

Result<std::vector<std::string>> ParseListing(std::string_view text) {
  if (text.size() > kListingBytesMax) return NoListing(fmt::format("{} bytes", text.size()));
  const auto json = ParseStrictJson(text, "its answer");
  if (!json.ok()) return NoListing(EscapeUnprintable(Message(json.status())));
  if (!json->is_array()) return NoListing("JSON that is no array");
  if (json->size() > limits::kSharedFoldersMax) {
    return NoListing(fmt::format("{} names", json->size()));
  }
  std::vector<std::string> names;
  for (const nlohmann::json& entry : *json) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    if (name == entry.end() || !name->is_string()) return NoListing("an entry without a name");
    names.push_back(name->get<std::string>());
    if (!IsName(names.back())) {
      return NoListing(fmt::format("the name \"{}\"", EscapeUnprintable(names.back())));
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace dws::http_files
