#include "common/base/failpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

namespace dws {
namespace {

Status Work() {
  DWS_FAILPOINT("test.work");
  return OkStatus();
}

TEST_CASE("a failpoint that is not armed does nothing", "[failpoint]") {
  ::unsetenv("DWS_FAILPOINT");
  CHECK(Work().ok());
  ::setenv("DWS_FAILPOINT", "test.workshop:error,test.wor:kill", 1);
  CHECK(Work().ok());
}

TEST_CASE("a failpoint armed with error fails its function", "[failpoint]") {
  ::setenv("DWS_FAILPOINT", "test.other:kill,test.work:error", 1);
  CHECK(Work().code() == absl::StatusCode::kInternal);
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

TEST_CASE("the last of two entries for one failpoint counts", "[failpoint]") {
  CHECK(FindFailpoint("a:kill,a:error", "a") == FailpointAction::kError);
  CHECK(FindFailpoint("", "a") == FailpointAction::kNone);
}

}  // namespace
}  // namespace dws
