#include "common/service/build_version.h"

#include <fmt/format.h>

#include "common/service/build_commit.h"
#include "common/service/protocol_version.h"
#include "proto/admin.pb.h"

namespace dws {
namespace {

// A macro's value as text.
#define DWS_TEXT_OF(name) #name
#define DWS_TEXT(name) DWS_TEXT_OF(name)

constexpr std::string_view kCompiler =
#ifdef __clang__
    "clang " DWS_TEXT(__clang_major__) "." DWS_TEXT(__clang_minor__);
#else
    "gcc " DWS_TEXT(__GNUC__) "." DWS_TEXT(__GNUC_MINOR__) "." DWS_TEXT(__GNUC_PATCHLEVEL__);
#endif

#undef DWS_TEXT
#undef DWS_TEXT_OF

// The .bazelrc config this file was compiled with. It is derived from the compiler's macros, so
// that no flag has to pass the name.
constexpr std::string_view kConfiguration =
#if defined(__SANITIZE_ADDRESS__)
    "asan";
#elif defined(__SANITIZE_THREAD__)
    "tsan";
#elif !defined(__OPTIMIZE__)
        "dbg";
#elif defined(NDEBUG) && defined(DWS_STATIC)
        "opt static";
#elif defined(NDEBUG)
        "opt";
#elif defined(DWS_STATIC)
        "static";
#else
        "default";
#endif

}  // namespace

const Build& ThisBuild() {
  static constexpr Build kBuild = {.version = kBuildVersion,
                                   .commit = kBuildCommit,
                                   .compiler = kCompiler,
                                   .configuration = kConfiguration,
                                   .protocol_major = kProtocolMajor,
                                   .protocol_minor = kProtocolMinor};
  return kBuild;
}

std::string VersionText(std::string_view program) {
  const Build& build = ThisBuild();
  return fmt::format(
      "{} {}\n"
      "commit         {}\n"
      "compiler       {}\n"
      "configuration  {}\n"
      "protocol       {}.{}",
      program, build.version, build.commit, build.compiler, build.configuration,
      build.protocol_major, build.protocol_minor);
}

void FillBuildStatus(v1::BuildStatus& status) {
  const Build& build = ThisBuild();
  status.set_commit(std::string(build.commit));
  status.set_compiler(std::string(build.compiler));
  status.set_configuration(std::string(build.configuration));
  status.set_protocol_major(build.protocol_major);
  status.set_protocol_minor(build.protocol_minor);
}

}  // namespace dws
