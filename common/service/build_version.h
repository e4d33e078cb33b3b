// Identifies this build: version, source commit, compiler, configuration. The version is defined
// here, the commit comes from tools/package.sh, the rest from the compiler. A new commit recompiles
// only one file.
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

// Fills in everything except the version, for which StatusReply has a separate field.
void FillBuildStatus(v1::BuildStatus& status);

}  // namespace dws
