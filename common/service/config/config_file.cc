#include "common/service/config/config_file.h"

// We use no exceptions: the library must return errors as values.
#define TOML_EXCEPTIONS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

int LineOf(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

std::string_view TypeName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::none:
      return "nothing";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
  }
  return "a value";
}

// Returns the value as a flag would write it, or nullopt for a type that no flag takes.
std::optional<std::pair<ConfigEntry::Kind, std::string>> Scalar(const toml::node& node) {
  if (const auto* text = node.as_string()) return {{ConfigEntry::Kind::kText, text->get()}};
  if (const auto* integer = node.as_integer()) {
    return {{ConfigEntry::Kind::kInteger, fmt::format("{}", integer->get())}};
  }
  if (const auto* number = node.as_floating_point()) {
    return {{ConfigEntry::Kind::kNumber, fmt::format("{}", number->get())}};
  }
  if (const auto* boolean = node.as_boolean()) {
    return {{ConfigEntry::Kind::kBoolean, boolean->get() ? "true" : "false"}};
  }
  return std::nullopt;
}

// Every valid key has fewer parts. A deeper table is a mistake, and the recursion ends there.
constexpr int kTablesMax = 32;
// The most dots in a line. It limits the library's recursion over a.b.c; a list of a thousand
// addresses has fewer.
constexpr std::ptrdiff_t kDotsMax = 4'000;

class Flattener {
 public:
  void Table(const std::string& prefix, const toml::table& table, int depth = kTablesMax) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      if (const toml::table* inner = node.as_table()) {
        if (depth == 0) {
          Mistake(LineOf(node), "tables nested deeper than any known key");
          continue;
        }
        Table(key + "-", *inner, depth - 1);
      } else if (const toml::array* array = node.as_array()) {
        List(key, *array);
      } else if (const auto scalar = Scalar(node)) {
        Add({.key = key, .kind = scalar->first, .values = {scalar->second}, .line = LineOf(node)});
      } else {
        Mistake(LineOf(node), fmt::format("{}: expected a string, number, boolean or an array of "
                                          "them, found {}",
                                          key, TypeName(node)));
      }
    }
  }

  ConfigFileContent Take() {
    const auto by_line = [](const auto& a, const auto& b) { return a.line < b.line; };
    for (auto& [key, entry] : entries_) content_.entries.push_back(std::move(entry));
    std::stable_sort(content_.entries.begin(), content_.entries.end(), by_line);
    std::stable_sort(content_.mistakes.begin(), content_.mistakes.end(), by_line);
    return std::move(content_);
  }

  void Mistake(int line, std::string text) {
    content_.mistakes.push_back({.line = line, .text = std::move(text)});
  }

 private:
  void List(const std::string& key, const toml::array& array) {
    ConfigEntry entry{.key = key, .is_list = true, .line = LineOf(array)};
    for (const toml::node& node : array) {
      const auto scalar = Scalar(node);
      if (!scalar.has_value()) {
        Mistake(LineOf(node), fmt::format("{}: expected an array of values, found {} in it", key,
                                          TypeName(node)));
        return;
      }
      if (!entry.values.empty() && scalar->first != entry.kind) {
        Mistake(LineOf(node), fmt::format("{}: expected values of one type, found {} among others",
                                          key, TypeName(node)));
        return;
      }
      entry.kind = scalar->first;
      entry.values.push_back(scalar->second);
    }
    Add(std::move(entry));
  }

  // `tls-ca` and `[tls] ca` are the same key for us, but two keys for TOML.
  void Add(ConfigEntry entry) {
    const auto [at, added] = entries_.try_emplace(entry.key, entry);
    if (added) return;
    const auto [first, second] = std::minmax(at->second.line, entry.line);
    Mistake(second, fmt::format("{}: given twice, first in line {}", entry.key, first));
  }

  std::map<std::string, ConfigEntry> entries_;
  ConfigFileContent content_;
};

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

bool IsTableHead(const std::string& line) {
  const size_t first = line.find_first_not_of(" \t");
  return first != std::string::npos && line[first] == '[';
}

// Returns whether the text after the bracket or brackets can begin a name, or closes them. Checked
// here because the library asserts it instead of reporting an error.
bool HasName(const std::string& head) {
  const size_t at = head.find_first_not_of(" \t", head.find('[') + 1);
  if (at == std::string::npos) return false;
  const size_t name = head[at] == '[' ? head.find_first_not_of(" \t", at + 1) : at;
  if (name == std::string::npos) return false;
  const char c = head[name];
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-\"']").find(c) != std::string_view::npos;
}

// Empties a line that cannot be parsed. If it is a table's head, it also empties the lines of that
// table, because their keys would be read as keys of the table before. Returns false if there is
// nothing left to empty.
bool LeaveOut(std::vector<std::string>& lines, size_t index) {
  if (index >= lines.size() || lines[index].empty()) return false;
  const bool head = IsTableHead(lines[index]);
  lines[index].clear();
  for (size_t i = index + 1; head && i < lines.size() && !IsTableHead(lines[i]); ++i) {
    lines[i].clear();
  }
  return true;
}

}  // namespace

ConfigFileContent ParseConfigFile(std::string_view text) {
  Flattener flattener;
  std::vector<std::string> lines = SplitLines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (std::count(lines[i].begin(), lines[i].end(), '.') > kDotsMax) {
      flattener.Mistake(
          static_cast<int>(i) + 1,
          fmt::format("more than {} dots in a line; write a long list in several lines", kDotsMax));
    } else if (!IsTableHead(lines[i]) || HasName(lines[i])) {
      continue;
    } else {
      flattener.Mistake(static_cast<int>(i) + 1, "expected a table's name after '['");
    }
    static_cast<void>(LeaveOut(lines, i));
  }
  for (size_t tries = 0; tries < limits::kConfigMistakesMax; ++tries) {
    const std::string joined = fmt::format("{}\n", fmt::join(lines, "\n"));
    const toml::parse_result parsed = toml::parse(joined);
    if (parsed) {
      flattener.Table("", parsed.table());
      break;
    }
    const int line = static_cast<int>(parsed.error().source().begin.line);
    flattener.Mistake(line, std::string(parsed.error().description()));
    if (line < 1 || !LeaveOut(lines, static_cast<size_t>(line) - 1)) break;
  }
  return flattener.Take();
}

}  // namespace dws
