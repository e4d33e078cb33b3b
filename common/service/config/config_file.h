// A configuration file (TOML 1.0) as flat entries with their lines. A table is a prefix: `[tls] ca`
// is "tls-ca". Knows nothing of what the keys mean; common/service/config does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dws {

struct ConfigEntry {
  enum class Kind { kText, kInteger, kNumber, kBoolean };  // of all its values

  std::string key;  // "tls-ca"
  Kind kind = Kind::kText;
  bool is_list = false;             // written as an array
  std::vector<std::string> values;  // one unless `is_list`
  int line = 0;
};

// Something wrong with one line; the text says what is there and what is expected.
struct ConfigLineMistake {
  int line = 0;
  std::string text;
};

struct ConfigFileContent {
  std::vector<ConfigEntry> entries;         // by line; no key twice
  std::vector<ConfigLineMistake> mistakes;  // by line
};

// Pure. Goes on after a mistake: a line that is no TOML is left out (with the rest of its table,
// when it is the table's head), and what follows is read.
ConfigFileContent ParseConfigFile(std::string_view text);

}  // namespace dws
