// Parses a configuration file (TOML 1.0) into flat entries with their line numbers. A table is a
// prefix: `[tls] ca` is "tls-ca". The meaning of the keys is in config.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dws {

// One key of the file with its values.
struct ConfigEntry {
  enum class Kind { kText, kInteger, kNumber, kBoolean };  // of all its values

  std::string key;  // "tls-ca"
  Kind kind = Kind::kText;
  bool is_list = false;             // written as an array
  std::vector<std::string> values;  // one unless `is_list`
  int line = 0;
};

// A mistake in one line; the text says what was found and what is expected.
struct ConfigLineMistake {
  int line = 0;
  std::string text;
};

struct ConfigFileContent {
  std::vector<ConfigEntry> entries;         // by line; no key twice
  std::vector<ConfigLineMistake> mistakes;  // by line
};

// Pure. Continues after a mistake: skips a line that is not TOML (and the whole table, if the line
// is its head) and reads the lines after it.
ConfigFileContent ParseConfigFile(std::string_view text);

}  // namespace dws
