#include "common/formats/strict_json.h"

#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "common/model/limits.h"

namespace dws {
namespace {

using Json = nlohmann::json;

// The size of the longest prefix that is UTF-8.
size_t Utf8Size(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = FirstUtf8Character(text.substr(at)).size_bytes;
    if (size == 0) return at;
    at += size;
  }
  return at;
}

// Builds the value from the parser's events. An event that returns false ends the parse; error()
// then returns the reason.
class Builder final : public Json::json_sax_t {
 public:
  explicit Builder(const std::string& what) : what_(what) {}

  Status error() const { return error_; }
  Json TakeValue() { return std::move(value_); }

  bool null() override { return Place(nullptr) != nullptr; }
  bool boolean(bool value) override { return Place(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Place(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Place(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Place(value) != nullptr;
  }
  bool string(string_t& value) override { return Place(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // cannot occur in JSON text
  bool start_object(std::size_t) override { return Enter(Json::object()); }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return Enter(Json::array()); }
  bool end_array() override { return Leave(); }

  bool key(string_t& name) override {
    const auto [place, added] = open_.back()->emplace(name, nullptr);
    if (!added) {
      error_ = DataLossError("{}: the key '{}' occurs twice in one object", what_, name);
      return false;
    }
    member_ = &*place;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_ = DataLossError("{}: expected JSON, found something else at byte {} of it", what_,
                           position == 0 ? 0 : position - 1);
    return false;
  }

 private:
  Json* Place(Json value) {
    if (++count_ > limits::kJsonValuesMax) {
      error_ = ResourceExhaustedError("{}: more than {} values in its JSON", what_,
                                      limits::kJsonValuesMax);
      return nullptr;
    }
    if (open_.empty()) {
      value_ = std::move(value);
      return &value_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool Enter(Json container) {
    if (open_.size() >= limits::kJsonDepthMax) {
      error_ =
          ResourceExhaustedError("{}: JSON nested deeper than {}", what_, limits::kJsonDepthMax);
      return false;
    }
    Json* const place = Place(std::move(container));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }

  bool Leave() {
    open_.pop_back();
    return true;
  }

  const std::string& what_;
  Status error_;
  Json value_;
  std::vector<Json*> open_;  // a container does not move while one inside it is open
  Json* member_ = nullptr;   // the place for the value of the last key of open_.back()
  size_t count_ = 0;
};

}  // namespace

Result<Json> ParseStrictJson(std::string_view text, const std::string& what) {
  if (const size_t size = Utf8Size(text); size != text.size()) {
    return DataLossError("{}: expected UTF-8, byte {} of its JSON is not", what, size);
  }
  // The parser would treat a zero byte as the end.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return DataLossError("{}: expected JSON, found a zero byte at byte {} of it", what, zero);
  }
  Builder builder(what);
  const bool parsed = Json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!parsed) return builder.error();
  return builder.TakeValue();
}

std::optional<uint64_t> WholeNumber(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

Result<std::map<std::string, std::string>> StringMembers(const Json& object,
                                                         const std::string& what) {
  if (!object.is_object()) return DataLossError("{}: expected an object of strings", what);
  std::map<std::string, std::string> members;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) {
      return DataLossError("{}: expected a string at '{}', found {}", what, key, value.type_name());
    }
    members.emplace(key, value.get<std::string>());
  }
  return members;
}

bool IsUtf8(std::string_view text) { return Utf8Size(text) == text.size(); }

}  // namespace dws
