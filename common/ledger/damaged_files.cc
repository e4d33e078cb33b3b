// The number of copies is bounded: a disk that damages a ledger again and again must not fill up
// with them, and an operator must look at it.
#include "common/ledger/damaged_files.h"

#include <algorithm>
#include <vector>

#include "common/model/identity_limits.h"

namespace dws {

Result<std::string> SetDamagedAside(FileSystem& file_system, const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(folder));
  for (size_t number = 1; number <= limits::kDamagedLedgersMax; ++number) {
    const std::string suffix = fmt::format(".damaged-{}", number);
    if (std::find(names.begin(), names.end(), name + suffix) != names.end()) continue;
    const Status renamed = file_system.Rename(path, path + suffix);
    if (renamed.ok()) return path + suffix;
    return Annotate(renamed,
                    "a damaged ledger or fence cannot be set aside: unmount what is mounted "
                    "there, or move it away, then start again");
  }
  return ResourceExhaustedError(
      "{} is damaged, and {} damaged ones were set aside before: expected fewer; look at the disk, "
      "move {}.damaged-* away, then start again",
      path, limits::kDamagedLedgersMax, path);
}

}  // namespace dws
