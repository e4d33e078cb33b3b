// What this build is: its version, and what it was made of. The version stands here; the rest comes
// from the compiler and from tools/package.sh, which says the commit. A new commit alone recompiles
// one file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dws {

namespace v1 {
class BuildStatus;
}  // namespace v1

inline constexpr std::string_view kBuildVersion = "0.1.0";

// Lives as long as the process.
struct Build {
  std::string_view version;        // "0.1.0"
  std::string_view commit;         // of the source; "unknown" outside packages
  std::string_view compiler;       // "gcc 12.2.0"
  std::string_view configuration;  // "default", "opt", "opt static", "asan", ...
  uint32_t protocol_major = 0;
  uint32_t protocol_minor = 0;
};

const Build& ThisBuild();

// What `program --version` prints, without the last newline. The first line is "PROGRAM VERSION".
std::string VersionText(std::string_view program);

// All of it but the version, which StatusReply has in a field of its own.
void FillBuildStatus(v1::BuildStatus& status);

}  // namespace dws
