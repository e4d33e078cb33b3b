// Commands that operators configure to run around a shared directory.
#include "common/transport/shared_fs/visibility_hook.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws::shared {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

Status Run(const std::string& script,
           std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  return VisibilityHook({"/bin/sh", "-c", script}, "/shared").Run("12", deadline);
}

std::string Read(const std::string& file) {
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  return in.eof() ? "" : text;  // "" until the line is complete
}

bool IsPid(const std::string& file) { return !Read(file).empty(); }

// Returns whether the process is running; a zombie is not.
bool Lives(const std::string& file) {
  std::ifstream stat("/proc/" + Read(file) + "/stat");
  std::string number;
  std::string name;
  std::string state;
  stat >> number >> name >> state;
  return stat.good() && state != "Z";
}

}  // namespace

TEST_CASE("a command is split like a shell does and nothing in it is expanded", "[shared_fs]") {
  CHECK(*SplitCommand("  sync -x  /mnt ") == Words{"sync", "-x", "/mnt"});
  CHECK(*SplitCommand("a 'b c' \"d e\" f\\ g") == Words{"a", "b c", "d e", "f g"});
  CHECK(*SplitCommand("a\"b\"'c' ''") == Words{"abc", ""});
  CHECK(*SplitCommand("a \"x\\\"y\\\\z\\n\" '\\'") == Words{"a", "x\"y\\z\\n", "\\"});
  CHECK(*SplitCommand("echo $HOME `id` *") == Words{"echo", "$HOME", "`id`", "*"});
  CHECK(absl::IsInvalidArgument(SplitCommand("a 'b").status()));
  CHECK(absl::IsInvalidArgument(SplitCommand("   ").status()));
}

TEST_CASE("a command gets the directory and version in its environment", "[shared_fs]") {
  const TempFolder folder;
  const std::string file = folder.File("told");
  REQUIRE(Run("echo \"$DWS_SHARED_DIR $DWS_VERSION\" > " + file).ok());
  CHECK(Run("test \"$(cat " + file + ")\" = '/shared 12'").ok());
  CHECK(VisibilityHook().Run("1", std::chrono::seconds(1)).ok());
}

TEST_CASE("the error of a failed command has its last line of output", "[shared_fs]") {
  CHECK_THAT(ToString(Run("echo first; echo no such bucket >&2; exit 3")),
             Contains("status 3") && Contains("no such bucket") && !Contains("first"));
  CHECK_THAT(ToString(Run("kill -9 $$")), Contains("signal 9"));
  CHECK_THAT(
      ToString(VisibilityHook({"/no/such/program"}, "/shared").Run("1", std::chrono::seconds(5))),
      Contains("/no/such/program"));
  // More output than a pipe holds.
  CHECK(Run("yes | head -c 1000000").ok());
}

TEST_CASE("a command that does not end is killed with its children", "[shared_fs]") {
  const TempFolder folder;
  const std::string file = folder.File("child");
  const std::string script = "sleep 1000 & echo $! > " + file + "; echo begun; sleep 1000";
  SECTION("at its deadline") {
    const Status status = Run(script, std::chrono::seconds(2));
    CHECK(absl::IsDeadlineExceeded(status));
    CHECK_THAT(ToString(status), Contains("2 s") && Contains("begun"));
  }
  SECTION("when it is cancelled") {
    const auto begun = std::chrono::steady_clock::now();
    const Status status = VisibilityHook({"/bin/sh", "-c", script}, "/shared")
                              .Run("12", std::chrono::minutes(10), [&] { return !IsPid(file); });
    CHECK(absl::IsCancelled(status));
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::minutes(1));
  }
  REQUIRE(IsPid(file));
  CHECK(Eventually([&] { return !Lives(file); }));
}

TEST_CASE("a command whose exit status is lost is not taken for a success", "[shared_fs]") {
  struct sigaction ignore = {};
  struct sigaction before = {};
  ignore.sa_handler = SIG_IGN;  // the kernel discards the exit status of children
  ::sigaction(SIGCHLD, &ignore, &before);
  const Status status = Run("exit 3");
  ::sigaction(SIGCHLD, &before, nullptr);
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(ToString(status), Contains("how it ended is not known"));
}

}  // namespace dws::shared
