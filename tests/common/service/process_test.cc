// A daemon's process: signals, the ports file, systemd.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "common/base/unique_fd.h"
#include "common/service/ports_file.h"
#include "common/service/program/sd_notify.h"
#include "common/service/program/shutdown_signal.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

TEST_CASE("SIGTERM and SIGINT and SIGHUP are returned and do not end the process", "[service]") {
  Result<ShutdownSignal> shutdown = ShutdownSignal::Install();
  REQUIRE(shutdown.ok());
  CHECK_FALSE(shutdown->WaitFor(milliseconds(0)).has_value());
  ::kill(::getpid(), SIGTERM);
  CHECK(shutdown->WaitFor(milliseconds(20'000)) == SIGTERM);
  ::kill(::getpid(), SIGHUP);
  CHECK(shutdown->WaitFor(milliseconds(20'000)) == SIGHUP);
  ::kill(::getpid(), SIGINT);
  CHECK(shutdown->WaitFor(milliseconds(20'000)) == SIGINT);
  CHECK_FALSE(shutdown->WaitFor(milliseconds(0)).has_value());
}

TEST_CASE("the process itself can end its wait for a signal", "[service]") {
  Result<ShutdownSignal> shutdown = ShutdownSignal::Install();
  REQUIRE(shutdown.ok());
  std::thread failing([&shutdown] { shutdown->Trigger(); });
  CHECK(shutdown->WaitFor(milliseconds(20'000)) == 0);
  failing.join();
}

TEST_CASE("writing to a closed pipe is an error and does not end the process", "[service]") {
  REQUIRE(ShutdownSignal::Install().ok());
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  CHECK(::write(ends[1], "x", 1) == -1);
  CHECK(errno == EPIPE);
  ::close(ends[1]);
}

TEST_CASE("the ports file is JSON and is either complete or absent", "[service]") {
  FaultFileSystem fs;
  fs.FailOperation(1, ResourceExhaustedError("disk full"));
  CHECK_FALSE(WritePortsFile(fs, "/run/ports", {{"sync", uint16_t{1}}}).ok());
  CHECK(fs.Content("/run/ports").empty());
  REQUIRE(
      WritePortsFile(fs, "/run/ports", {{"sync", uint16_t{40123}}, {"http", uint16_t{9}}}).ok());
  CHECK(AsText(fs.Content("/run/ports")) == "{\"http\": 9, \"sync\": 40123}\n");
}

TEST_CASE("systemd is notified of the daemon's state", "[service]") {
  TempFolder folder;
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder.File("notify");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const auto receive = [&fd] {
    char text[200];
    const ssize_t size = ::recv(fd.get(), text, sizeof(text), MSG_DONTWAIT);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  };

  ::unsetenv("NOTIFY_SOCKET");
  NotifyReady();
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  NotifyReady();
  CHECK(receive() == "READY=1\nMAINPID=" + std::to_string(::getpid()));
  NotifyStatus("version 7,\n2 receivers");
  CHECK(receive() == "STATUS=version 7, 2 receivers");
  NotifyReloading();
  CHECK_THAT(receive(), Catch::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  NotifyWatchdog();
  CHECK(receive() == "WATCHDOG=1");
  NotifyStopping();
  CHECK(receive() == "STOPPING=1");
  // No listener, a name too long, no name: nothing happens.
  for (const std::string& name : {folder.File("none"), std::string(300, 'x'), std::string("@")}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    NotifyReady();
  }
  ::unsetenv("NOTIFY_SOCKET");
}

TEST_CASE("the watchdog interval is used only if it is for this process", "[service]") {
  ::unsetenv("WATCHDOG_USEC");
  ::unsetenv("WATCHDOG_PID");
  CHECK(WatchdogInterval() == std::nullopt);
  ::setenv("WATCHDOG_USEC", "3000000", 1);
  CHECK(WatchdogInterval() == std::chrono::seconds(3));
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  CHECK(WatchdogInterval() == std::chrono::seconds(3));
  ::setenv("WATCHDOG_PID", "1", 1);
  CHECK(WatchdogInterval() == std::nullopt);
  ::unsetenv("WATCHDOG_PID");
  ::setenv("WATCHDOG_USEC", "18446744073709551615", 1);
  CHECK(WatchdogInterval() == std::chrono::hours(1));
  for (const char* const wrong : {"0", "", "3s", "-1"}) {
    ::setenv("WATCHDOG_USEC", wrong, 1);
    CHECK(WatchdogInterval() == std::nullopt);
  }
  ::unsetenv("WATCHDOG_USEC");
}

}  // namespace
}  // namespace dws
