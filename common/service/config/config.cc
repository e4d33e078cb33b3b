#include "common/service/config/config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/service/config/closest_name.h"
#include "common/service/config/config_option.h"

namespace dws {
namespace {

constexpr std::string_view kEnvironmentPrefix = "DWS_";

std::string EnvironmentName(std::string_view name) {
  std::string out(kEnvironmentPrefix);
  for (const char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    const size_t first = std::min(part.find_first_not_of(" \t"), part.size());
    const size_t last = part.find_last_not_of(" \t");
    if (first < part.size()) parts.emplace_back(part.substr(first, last + 1 - first));
    if (comma == text.size()) return parts;
    text.remove_prefix(comma + 1);
  }
}

// The values of one flag, in the order they were given.
struct GivenFlags {
  std::map<std::string, std::vector<std::string>> values;
  std::vector<std::string> order;
};

std::string FindPath(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& environment) {
  std::string path;
  for (const std::string& variable : environment) {
    if (variable.starts_with("DWS_CONFIG=")) path = variable.substr(11);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--config=")) path = arguments[i].substr(9);
    if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
  }
  return path;
}

}  // namespace

Config::Config(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || name == "version") continue;
    settings_[name] = {.option = option, .values = DefaultValues(*option)};
    order_.push_back(name);
  }
}

Config Config::Load(CLI::App& app, FileSystem& files, const Sources& sources) {
  Config config(app);
  const std::string path = FindPath(sources.arguments, sources.environment);
  if (!path.empty()) config.ReadFileLayer(files, path);
  config.ReadEnvironmentLayer(sources.environment);
  config.ReadFlagLayer(sources.arguments);
  config.CheckRequired();
  return config;
}

void Config::ReadFileLayer(FileSystem& files, const std::string& path) {
  const auto bytes = files.ReadFile(path, limits::kConfigBytesMax);
  if (!bytes.ok()) {
    mistakes_.push_back({.source = path, .text = std::string(Message(bytes.status()))});
    return;
  }
  ConfigFileContent content = ParseConfigFile(AsText(*bytes));
  for (const ConfigEntry& entry : content.entries) {
    const auto wrong = TakeFileEntry(fmt::format("{}:{}", path, entry.line), entry);
    if (wrong) content.mistakes.push_back({entry.line, fmt::format("{}: {}", entry.key, *wrong)});
  }
  std::stable_sort(content.mistakes.begin(), content.mistakes.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  for (ConfigLineMistake& mistake : content.mistakes) {
    mistakes_.push_back(
        {.source = fmt::format("{}:{}", path, mistake.line), .text = std::move(mistake.text)});
  }
}

std::optional<std::string> Config::TakeFileEntry(const std::string& source,
                                                 const ConfigEntry& entry) {
  Setting* const setting = Find(entry.key);
  if (setting == nullptr) return WithSuggestion("there is no such key", entry.key, "");
  if (!setting->option->get_configurable()) return "not a key of the file, only a flag";
  if (const auto wrong = WrongType(*setting->option, entry)) return wrong;
  return Set(*setting, entry.values, source);
}

void Config::ReadEnvironmentLayer(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> names;  // of options, by variable
  for (const std::string& name : order_) names[EnvironmentName(name)] = name;
  std::vector<std::string> sorted = environment;
  std::sort(sorted.begin(), sorted.end());
  for (const std::string& variable : sorted) {
    if (!variable.starts_with(kEnvironmentPrefix)) continue;
    const size_t end = std::min(variable.find('='), variable.size());
    const std::string key = variable.substr(0, end);
    const std::string value = variable.substr(std::min(end + 1, variable.size()));
    const auto known = names.find(key);
    if (known == names.end()) {
      // This is not a mistake: orchestrators derive variables from names of services
      // (DWS_SENDER_PORT), and several programs may share one environment.
      std::vector<std::string> candidates;
      for (const auto& [candidate, name] : names) candidates.push_back(candidate);
      const auto closest = ClosestName(key, candidates);
      warnings_.push_back(fmt::format("environment {}: no option of this program{}", key,
                                      closest ? fmt::format("; did you mean {}?", *closest) : ""));
      continue;
    }
    const Setting& setting = *Find(known->second);
    if (value.empty() || IsFlagOnly(*setting.option)) continue;
    SetOrReject(known->second,
                IsList(*setting.option) ? SplitAtCommas(value) : std::vector<std::string>{value},
                "environment " + key);
  }
}

void Config::ReadFlagLayer(const std::vector<std::string>& arguments) {
  GivenFlags given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string flag = argument.substr(0, equals);
    if (!flag.starts_with("--") || flag.size() < 3) {
      mistakes_.push_back(
          {.source = "flags", .text = fmt::format("'{}': expected --NAME=VALUE", argument)});
      continue;
    }
    const std::string name = flag.substr(2);
    Setting* const setting = Find(name);
    if (setting == nullptr) {
      mistakes_.push_back(
          {.source = "flag " + flag, .text = WithSuggestion("there is no such flag", name, "--")});
      continue;
    }
    std::string value;
    if (equals < argument.size()) {
      value = argument.substr(equals + 1);
    } else if (IsSwitch(*setting->option)) {
      value = "true";
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      mistakes_.push_back({.source = "flag " + flag, .text = "expected a value after it"});
      continue;
    }
    if (given.values[name].empty()) given.order.push_back(name);
    given.values[name].push_back(std::move(value));
  }
  for (const std::string& name : given.order) {
    SetOrReject(name, given.values[name], "flag --" + name);
  }
}

void Config::CheckRequired() {
  for (const std::string& name : order_) {
    const Setting& setting = *Find(name);
    if (!setting.option->get_required() || setting.source != "default") continue;
    const bool mistaken = std::any_of(
        mistakes_.begin(), mistakes_.end(),
        [&name](const Mistake& mistake) { return mistake.text.starts_with(name + ":"); });
    if (mistaken) continue;
    mistakes_.push_back(
        {.source = "nowhere",
         .text =
             fmt::format("{}: has no default and must be set, by --{}, {} or a line in the file",
                         name, name, EnvironmentName(name))});
  }
}

Config::Setting* Config::Find(std::string_view name) {
  const auto at = settings_.find(name);
  return at == settings_.end() ? nullptr : &at->second;
}

std::optional<std::string> Config::Set(Setting& setting, const std::vector<std::string>& values,
                                       const std::string& source) {
  if (auto wrong = Assign(*setting.option, values)) {
    static_cast<void>(Assign(*setting.option, setting.values));  // restores the previous values
    return wrong;
  }
  setting.values = AssignedValues(*setting.option);
  setting.source = source;
  return std::nullopt;
}

void Config::SetOrReject(std::string_view name, const std::vector<std::string>& values,
                         const std::string& source) {
  if (const auto wrong = Set(*Find(name), values, source)) {
    mistakes_.push_back({.source = source, .text = fmt::format("{}: {}", name, *wrong)});
  }
}

std::string Config::WithSuggestion(std::string text, std::string_view name,
                                   std::string_view prefix) const {
  const std::optional<std::string> closest = ClosestName(name, order_);
  return closest ? fmt::format("{}; did you mean {}{}?", text, prefix, *closest) : text;
}

std::string Config::SourceOf(std::string_view name) const {
  const auto at = settings_.find(name);
  DWS_CHECK(at != settings_.end());
  return at->second.source;
}

void Config::Derive(std::string_view name, const std::string& value) {
  Setting* const setting = Find(name);
  DWS_CHECK(setting != nullptr);
  if (setting->source == "default") SetOrReject(name, {value}, "default");
}

void Config::Reject(std::string_view name, std::string_view text) {
  mistakes_.push_back({.source = SourceOf(name), .text = fmt::format("{}: {}", name, text)});
}

std::string Config::EffectiveText() const {
  std::string out;
  for (const std::string& name : order_) {
    const Setting& setting = settings_.find(name)->second;
    // Options about one run of the program are not keys of a file.
    if (!setting.option->get_configurable()) continue;
    const std::string line =
        fmt::format("{} = {}", name, TomlValue(*setting.option, setting.values));
    out += fmt::format("{:<48}  # {}\n", line, setting.source);
  }
  return out;
}

std::vector<std::string> Config::DifferentFrom(const Config& other) const {
  std::vector<std::string> names;
  for (const std::string& name : order_) {
    const auto theirs = other.settings_.find(name);
    if (theirs == other.settings_.end() ||
        settings_.find(name)->second.values != theirs->second.values) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace dws
