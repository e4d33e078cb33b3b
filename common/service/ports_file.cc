#include "common/service/ports_file.h"

#include <algorithm>

#include "common/base/check.h"

namespace dws {

Status WritePortsFile(FileSystem& file_system, const std::string& path,
                      const std::map<std::string, uint16_t>& ports) {
  std::string text = "{";
  for (const auto& [name, port] : ports) {
    // Names are constants of the daemons, so nothing in them needs escaping.
    DWS_CHECK(std::all_of(name.begin(), name.end(),
                          [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; }));
    text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", name, port);
  }
  text += "}\n";
  return file_system.ReplaceFile(path, AsBytes(text));
}

}  // namespace dws
