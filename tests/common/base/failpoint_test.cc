#include "common/base/failpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <string>

namespace dws {
namespace {

Status Work() {
  DWS_FAILPOINT("test.work");
  return OkStatus();
}

TEST_CASE("a failpoint that is not armed does nothing", "[failpoint]") {
  ::unsetenv("DWS_FAILPOINT");
  CHECK(Work().ok());
  ::setenv("DWS_FAILPOINT", "file.replace.after_rename:error,sender.full.after_frame:kill", 1);
  CHECK(Work().ok());
}

TEST_CASE("a failpoint armed with error fails its function", "[failpoint]") {
  ::setenv("DWS_FAILPOINT", "sender.full.after_frame:kill,test.work:error@2", 1);
  CHECK(Work().ok());
  CHECK(Work().code() == absl::StatusCode::kInternal);
  CHECK(Work().ok());
}

TEST_CASE("a failpoint armed with kill ends the process as a power cut would", "[failpoint]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("DWS_FAILPOINT", "test.work:kill", 1);
    static_cast<void>(Work());
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("of two entries for one failpoint the last one applies", "[failpoint]") {
  const std::string armed = "test.work:kill@7,test.work:error";
  CHECK(FindFailpoint(armed, "test.work").action == FailpointAction::kError);
  CHECK(FindFailpoint(armed, "test.work").at == 0);
  CHECK(FindFailpoint("test.work:kill@7", "test.work").at == 7);
  CHECK(FindFailpoint("", "test.work").action == FailpointAction::kNone);
}

}  // namespace
}  // namespace dws
