// MemAvailable counts what the kernel would take back from its caches; of a control group the
// caches are left out here. Groups lie in each other, and each has a limit. In a container the path
// of the group may be the host's, of which only the last part is mounted: what does not exist has
// no limit.
#include "common/memory/available_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string_view>

namespace dws {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The files in which one version of control groups states its limits. `path`: in /proc/self/cgroup,
// after the line's number.
struct GroupFiles {
  std::string_view path;
  std::string_view mount;
  std::string_view limit;
  std::string_view usage;
  std::string_view caches;  // a field of memory.stat
};
constexpr GroupFiles kGroupFiles[] = {
    {.path = "::",
     .mount = "/sys/fs/cgroup",
     .limit = "memory.max",
     .usage = "memory.current",
     .caches = "inactive_file"},
    {.path = ":memory:",
     .mount = "/sys/fs/cgroup/memory",
     .limit = "memory.limit_in_bytes",
     .usage = "memory.usage_in_bytes",
     .caches = "total_inactive_file"},
};

// Returns the number after `field` in a file of lines; an empty `field` means the only number.
// None: no file, or "max".
std::optional<uint64_t> Read(const std::string& path, std::string_view field = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    unsigned long long value = 0;
    if (!line.starts_with(field)) continue;
    if (std::sscanf(line.c_str() + field.size(), "%llu", &value) == 1) return value;
  }
  return std::nullopt;
}

uint64_t LeftOf(const std::string& folder, const GroupFiles& files) {
  const auto at = [&folder](std::string_view name) { return folder + "/" + std::string(name); };
  const std::optional<uint64_t> limit = Read(at(files.limit));
  if (!limit.has_value()) return kUnknown;
  const uint64_t usage = Read(at(files.usage)).value_or(0);
  const uint64_t caches = Read(at("memory.stat"), std::string(files.caches) + " ").value_or(0);
  return *limit - std::min(*limit, usage - std::min(usage, caches));
}

uint64_t LeftOfGroups(const std::string& root) {
  uint64_t left = kUnknown;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    for (const GroupFiles& files : kGroupFiles) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos || !line.substr(colon).starts_with(files.path)) continue;
      std::string group = line.substr(colon + files.path.size());
      while (true) {
        left = std::min(left, LeftOf(root + std::string(files.mount) + group, files));
        if (group.empty()) break;
        group.resize(std::min(group.size() - 1, group.rfind('/')));
      }
    }
  }
  return left;
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  const std::optional<uint64_t> kib = Read(root + "/proc/meminfo", "MemAvailable:");
  return std::min(kib.has_value() ? *kib * 1024 : kUnknown, LeftOfGroups(root));
}

}  // namespace dws
