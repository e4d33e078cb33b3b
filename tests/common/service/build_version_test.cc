#include "common/service/build_version.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/service/protocol_version.h"
#include "proto/admin.pb.h"

namespace dws {
namespace {

TEST_CASE("a build has a version and a commit and a compiler and a configuration", "[service]") {
  const Build& build = ThisBuild();
  CHECK(build.version == kBuildVersion);
  // build_commit_test.py checks the form of the commit.
  CHECK_FALSE(build.commit.empty());
  CHECK((build.compiler.starts_with("gcc 1") || build.compiler.starts_with("clang 1")));
  CHECK_FALSE(build.configuration.empty());
}

TEST_CASE("the configuration is that of the command line", "[service]") {
  const std::string configuration(ThisBuild().configuration);
#if defined(__SANITIZE_ADDRESS__)
  CHECK(configuration == "asan");
#elif defined(__SANITIZE_THREAD__)
  CHECK(configuration == "tsan");
#elif defined(NDEBUG)
  CHECK(configuration.starts_with("opt"));
#else
  CHECK_FALSE(configuration.starts_with("opt"));
#endif
}

TEST_CASE("--version begins with one line: program and version", "[service]") {
  const std::string text = VersionText("dws-sender");
  CHECK(text.starts_with("dws-sender " + std::string(kBuildVersion) + "\n"));
  for (const std::string_view key : {"\ncommit ", "\ncompiler ", "\nconfiguration ", "\nprotocol "})
    CHECK(text.find(key) != std::string::npos);
  CHECK(text.back() != '\n');
}

TEST_CASE("a status reply carries the build", "[service]") {
  v1::BuildStatus status;
  FillBuildStatus(status);
  CHECK(status.commit() == ThisBuild().commit);
  CHECK(status.compiler() == ThisBuild().compiler);
  CHECK(status.configuration() == ThisBuild().configuration);
  CHECK(status.protocol_major() == kProtocolMajor);
  CHECK(status.protocol_minor() == kProtocolMinor);
}

}  // namespace
}  // namespace dws
