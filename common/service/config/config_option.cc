#include "common/service/config/config_option.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>

namespace dws {
namespace {

enum class OptionType { kSwitch, kInteger, kNumber, kSize, kText };

// Derived from the type's name as --help shows it. Validators append to the name after a colon.
OptionType TypeOf(const CLI::Option& option) {
  if (IsSwitch(option)) return OptionType::kSwitch;
  const std::string name = option.get_type_name();
  if (name.starts_with("SIZE")) return OptionType::kSize;
  for (const std::string_view integer : {"UINT", "INT", "SECONDS", "COUNT"}) {
    if (name.starts_with(integer)) return OptionType::kInteger;
  }
  return name.starts_with("FLOAT") ? OptionType::kNumber : OptionType::kText;
}

std::string_view Expected(OptionType type) {
  switch (type) {
    case OptionType::kSwitch:
      return "true or false";
    case OptionType::kInteger:
      return "an integer";
    case OptionType::kNumber:
      return "a number";
    case OptionType::kSize:
      return "a number of bytes, or a string such as \"256MiB\"";
    case OptionType::kText:
      return "a string";
  }
  return "";
}

std::string_view Found(ConfigEntry::Kind kind) {
  switch (kind) {
    case ConfigEntry::Kind::kText:
      return "a string";
    case ConfigEntry::Kind::kInteger:
      return "an integer";
    case ConfigEntry::Kind::kNumber:
      return "a number with a fraction";
    case ConfigEntry::Kind::kBoolean:
      return "a boolean";
  }
  return "";
}

bool Fits(OptionType type, ConfigEntry::Kind kind) {
  using Kind = ConfigEntry::Kind;
  switch (type) {
    case OptionType::kSwitch:
      return kind == Kind::kBoolean;
    case OptionType::kInteger:
      return kind == Kind::kInteger;
    case OptionType::kNumber:
      return kind == Kind::kInteger || kind == Kind::kNumber;
    case OptionType::kSize:
      return kind == Kind::kInteger || kind == Kind::kText;
    case OptionType::kText:
      return kind == Kind::kText;
  }
  return false;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

bool IsSwitch(const CLI::Option& option) { return option.get_expected_max() == 0; }
bool IsList(const CLI::Option& option) { return option.get_expected_max() > 1; }
bool IsFlagOnly(const CLI::Option& option) {
  return !option.get_configurable() && option.get_single_name() != "config";
}

std::vector<std::string> DefaultValues(const CLI::Option& option) {
  if (IsSwitch(option)) return {"false"};
  if (IsList(option)) return {};
  return {option.get_default_str()};
}

std::optional<std::string> WrongType(const CLI::Option& option, const ConfigEntry& entry) {
  const OptionType type = TypeOf(option);
  if (entry.is_list && !IsList(option)) {
    return fmt::format("expected {}, found an array", Expected(type));
  }
  if (!entry.values.empty() && !Fits(type, entry.kind)) {
    return fmt::format("expected {}{}, found {}", IsList(option) ? "an array, each value " : "",
                       Expected(type), Found(entry.kind));
  }
  return std::nullopt;
}

std::optional<std::string> Assign(CLI::Option& option, const std::vector<std::string>& values) {
  if (values.size() > 1 && !IsList(option)) {
    return fmt::format("given {} times, expected once", values.size());
  }
  // CLI11 reports errors as exceptions; they are all caught here.
  try {
    option.clear();
    if (values.empty()) return std::nullopt;
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
    return std::nullopt;
  } catch (const CLI::ConversionError&) {
    return fmt::format("expected {}, found '{}'", Expected(TypeOf(option)),
                       fmt::join(values, "', '"));
  } catch (const CLI::Error& error) {
    const std::string text = error.what();
    const std::string prefix = option.get_name() + ": ";
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
}

std::vector<std::string> AssignedValues(const CLI::Option& option) {
  std::vector<std::string> values = option.results();
  if (!IsSwitch(option)) return values;
  // CLI11 also accepts yes, on and 1.
  for (std::string& value : values) {
    value = CLI::detail::to_flag_value(value) > 0 ? "true" : "false";
  }
  return values;
}

std::string TomlValue(const CLI::Option& option, const std::vector<std::string>& values) {
  const OptionType type = TypeOf(option);
  std::vector<std::string> written;
  for (const std::string& value : values) {
    written.push_back(type == OptionType::kText || value.empty() ? Quoted(value) : value);
  }
  if (IsList(option)) return fmt::format("[{}]", fmt::join(written, ", "));
  return written.empty() ? "\"\"" : written.front();
}

}  // namespace dws
