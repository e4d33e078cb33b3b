#include "common/formats/strict_json.h"

#include <deque>
#include <unordered_set>
#include <utility>

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

// Handles the parser's events. Builds one value at a time, and drops it once the reader of the text
// has seen it. An event that returns false ends the parse; error() then returns the reason.
class Builder final : public Json::json_sax_t {
 public:
  Builder(const std::string& what, const MemberReader& reader) : what_(what), reader_(reader) {}

  Status error() const { return error_; }
  Json TakeValue() { return std::move(value_); }

  bool null() override { return Place(nullptr) && Closed(); }
  bool boolean(bool value) override { return Place(value) && Closed(); }
  bool number_integer(number_integer_t value) override { return Place(value) && Closed(); }
  bool number_unsigned(number_unsigned_t value) override { return Place(value) && Closed(); }
  bool number_float(number_float_t value, const string_t&) override {
    return Place(value) && Closed();
  }
  bool string(string_t& value) override { return Place(std::move(value)) && Closed(); }
  bool binary(binary_t&) override { return false; }  // cannot occur in JSON text
  bool start_object(std::size_t) override { return Enter(Json::object()); }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return Enter(Json::array()); }
  bool end_array() override { return Leave(); }

  bool key(string_t& name) override {
    Container& container = open_.back();
    if (container.members_are_read) {
      if (!container.seen.insert(name).second) return Twice(name);
      container.key = std::move(name);
      container.place = Json();
      if (open_.size() > 1 || reader_.opens == nullptr) return true;
      opens_next_ = reader_.opens(container.key);
      return true;
    }
    const auto [place, added] = container.value->emplace(name, nullptr);
    if (!added) return Twice(name);
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
  // An object or array whose end has not been read.
  struct Container {
    Json* value = nullptr;
    // Its members are handed to the reader one by one; it stays empty.
    bool members_are_read = false;
    std::string key;  // of the member that is being read, and
    Json place;       // its value
    std::unordered_set<std::string> seen;
  };

  bool Twice(const std::string& name) {
    error_ = DataLossError("{}: the key '{}' occurs twice in one object", what_, name);
    return false;
  }

  bool Place(Json value) {
    if (++count_ > limits::kJsonValuesMax) {
      error_ = ResourceExhaustedError("{}: more than {} values in its JSON", what_,
                                      limits::kJsonValuesMax);
      return false;
    }
    if (reader_.on_member != nullptr && ++member_count_ > kJsonMemberValuesMax) {
      error_ = ResourceExhaustedError("{}: more than {} values in one member of its JSON", what_,
                                      kJsonMemberValuesMax);
      return false;
    }
    if (open_.empty()) {
      value_ = std::move(value);
      placed_ = &value_;
    } else if (Container& container = open_.back(); container.members_are_read) {
      container.place = std::move(value);
      placed_ = &container.place;
    } else if (container.value->is_array()) {
      container.value->push_back(std::move(value));
      placed_ = &container.value->back();
    } else {
      *member_ = std::move(value);
      placed_ = member_;
    }
    return true;
  }

  bool Enter(Json container) {
    if (open_.size() >= limits::kJsonDepthMax) {
      error_ =
          ResourceExhaustedError("{}: JSON nested deeper than {}", what_, limits::kJsonDepthMax);
      return false;
    }
    const bool object = container.is_object();
    if (!Place(std::move(container))) return false;
    const bool top = open_.empty() && reader_.on_member != nullptr;
    open_.push_back({.value = placed_, .members_are_read = object && (top || opens_next_)});
    opens_next_ = false;
    return true;
  }

  bool Leave() {
    open_.pop_back();
    return Closed();
  }

  // A value is complete: hands it to the reader if its container's members are read.
  bool Closed() {
    opens_next_ = false;
    if (open_.empty() || !open_.back().members_are_read) return true;
    member_count_ = 0;
    const std::string parent = open_.size() == 1 ? "" : open_[open_.size() - 2].key;
    Container& container = open_.back();
    error_ = reader_.on_member(parent, container.key, std::move(container.place));
    return error_.ok();
  }

  const std::string& what_;
  const MemberReader& reader_;
  Status error_;
  Json value_;
  std::deque<Container> open_;  // a container does not move while one inside it is open
  Json* member_ = nullptr;      // the place for the value of the last key of open_.back()
  Json* placed_ = nullptr;      // the last value
  bool opens_next_ = false;     // the members of the object that begins next are read
  size_t count_ = 0;
  size_t member_count_ = 0;  // of the member that is being read
};

Result<Json> Parse(std::string_view text, const std::string& what, const MemberReader& reader) {
  if (const size_t size = Utf8Size(text); size != text.size()) {
    return DataLossError("{}: expected UTF-8, byte {} of its JSON is not", what, size);
  }
  // The parser would treat a zero byte as the end.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return DataLossError("{}: expected JSON, found a zero byte at byte {} of it", what, zero);
  }
  Builder builder(what, reader);
  const bool parsed = Json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!parsed) return builder.error();
  return builder.TakeValue();
}

}  // namespace

Result<Json> ParseStrictJson(std::string_view text, const std::string& what) {
  return Parse(text, what, {});
}

Status ReadStrictMembers(std::string_view text, const std::string& what,
                         const MemberReader& reader) {
  DWS_ASSIGN_OR_RETURN(const Json root, Parse(text, what, reader));
  if (root.is_object()) return OkStatus();
  return DataLossError("{}: expected a JSON object, found {}", what, root.type_name());
}

std::optional<uint64_t> WholeNumber(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

Status AddString(std::map<std::string, std::string>& members, const std::string& key,
                 const Json& value, const std::string& what) {
  if (!value.is_string()) {
    return DataLossError("{}: expected a string at '{}', found {}", what, key, value.type_name());
  }
  members.emplace(key, value.get<std::string>());
  return OkStatus();
}

Result<std::map<std::string, std::string>> StringMembers(const Json& object,
                                                         const std::string& what) {
  if (!object.is_object()) return DataLossError("{}: expected an object of strings", what);
  std::map<std::string, std::string> members;
  for (const auto& [key, value] : object.items()) {
    DWS_RETURN_IF_ERROR(AddString(members, key, value, what));
  }
  return members;
}

bool IsUtf8(std::string_view text) { return Utf8Size(text) == text.size(); }

}  // namespace dws
