// The main thread of a daemon, with real signals, real servers on a unix socket, and a systemd that
// only listens.
#include "common/service/program/daemon_loop.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

class NoOperations final : public AdminOperations {
 public:
  void FillStatus(v1::StatusReply&) const override {}
  Status Verify(const Sink&) override { return UnimplementedError("none"); }
  Status Resync(const v1::ResyncRequest&, const Sink&) override {
    return UnimplementedError("none");
  }
  Status Drain(const v1::DrainRequest&, const Sink&) override { return UnimplementedError("none"); }
  Status Evict(const v1::EvictRequest&, const Sink&) override { return UnimplementedError("none"); }
  Status ForgetStream(const v1::ForgetStreamRequest&, const Sink&) override {
    return UnimplementedError("none");
  }
};

// One piece of vital work, and a tick that a test defines.
class SmallDaemon final : public Daemon {
 public:
  explicit SmallDaemon(const std::string& socket) : Daemon({.job_id = "job", .socket = socket}) {
    REQUIRE(LoadSecurity({SenderIdentity("job", 0)}).ok());
    REQUIRE(StartServers({.operations = operations_, .metrics = metrics_}).ok());
  }
  ~SmallDaemon() override { CloseServers(); }

  void Stop(milliseconds) override {
    StopOperators();
    ShutdownServers();
    stopped.store(true);
  }
  void EndGrace() override {}
  Status broken() const override { return fault; }
  void Tick() override { on_tick(); }
  std::vector<WatchedWork> VitalWork() const override {
    return {{.name = "the work", .work = &liveness, .helpers = {}}};
  }

  Liveness liveness;
  Status fault;
  std::function<void()> on_tick = [] {};
  std::atomic<bool> stopped{false};

 private:
  NoOperations operations_;
  Metrics metrics_{{}};
};

// systemd's end of the notifications, with a watchdog that wants food every `interval`.
class Systemd {
 public:
  Systemd(const std::string& path, std::chrono::microseconds interval)
      : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    ::setenv("WATCHDOG_USEC", std::to_string(interval.count()).c_str(), 1);
  }
  ~Systemd() {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
  }
  // Returns whether the watchdog was fed since the last call.
  bool Fed() {
    bool fed = false;
    char text[200];
    ssize_t size = 0;
    while ((size = ::recv(fd_.get(), text, sizeof(text), MSG_DONTWAIT)) > 0) {
      fed |= std::string_view(text, static_cast<size_t>(size)) == "WATCHDOG=1";
    }
    return fed;
  }

 private:
  UniqueFd fd_;
};

}  // namespace

TEST_CASE("while a daemon is stuck its watchdog is not fed and its main thread waits",
          "[daemon_loop]") {
  const TempFolder folder;
  Result<ShutdownSignal> signals = ShutdownSignal::Install();
  REQUIRE(signals.ok());
  SmallDaemon daemon(folder.File("socket"));
  Systemd systemd(folder.File("notify"), milliseconds(20));  // fed every 10 ms
  struct Seen {
    TimePoint at;
    bool fed;
  };
  std::vector<Seen> ticks;
  const RealClock clock;
  daemon.on_tick = [&] {
    ticks.push_back({.at = clock.Now(), .fed = systemd.Fed()});
    if (ticks.size() == 6) daemon.liveness.Beat();
    if (ticks.size() == 7) signals->Trigger();
  };
  daemon.liveness.BeginWork();
  DaemonLoop loop(daemon, *signals, [] {},
                  {.stop_timeout = milliseconds(100), .stall_timeout = milliseconds(15)});
  CHECK(loop.Run().ok());
  REQUIRE(ticks.size() == 7);
  CHECK(ticks[0].fed);
  CHECK_FALSE(ticks[4].fed);
  CHECK_FALSE(ticks[5].fed);
  CHECK(ticks[5].at - ticks[4].at >= milliseconds(900));
  CHECK(ticks[6].fed);  // it works again
  CHECK(daemon.stopped.load());
}

TEST_CASE("a daemon that is broken is stopped and the reason is returned", "[daemon_loop]") {
  const TempFolder folder;
  Result<ShutdownSignal> signals = ShutdownSignal::Install();
  REQUIRE(signals.ok());
  SmallDaemon daemon(folder.File("socket"));
  daemon.fault = InternalError("the GPU is lost");
  DaemonLoop loop(daemon, *signals, [] {},
                  {.stop_timeout = milliseconds(100), .stall_timeout = milliseconds(10'000)});
  CHECK(loop.Run() == daemon.fault);
  CHECK(daemon.stopped.load());
}

TEST_CASE("a daemon is stopped when its owner has ended, and not before", "[daemon_loop]") {
  const TempFolder folder;
  Result<ShutdownSignal> signals = ShutdownSignal::Install();
  REQUIRE(signals.ok());
  const Systemd systemd(folder.File("notify"), milliseconds(20));  // a tick every 10 ms
  const auto ticks_with_owner = [&](pid_t owner) {
    SmallDaemon daemon(folder.File("socket"));
    int ticks = 0;
    daemon.on_tick = [&] {
      if (++ticks == 3) signals->Trigger();
    };
    DaemonLoop loop(daemon, *signals, [] {},
                    {.stop_timeout = milliseconds(100),
                     .stall_timeout = milliseconds(10'000),
                     .owner_pid = owner});
    CHECK(loop.Run().ok());
    CHECK(daemon.stopped.load());
    return ticks;
  };
  CHECK(ticks_with_owner(::getppid()) == 3);
  // No process is its own parent.
  CHECK(ticks_with_owner(::getpid()) == 0);
}

TEST_CASE("SIGHUP reads the configuration again and SIGTERM stops the daemon", "[daemon_loop]") {
  const TempFolder folder;
  Result<ShutdownSignal> signals = ShutdownSignal::Install();
  REQUIRE(signals.ok());
  SmallDaemon daemon(folder.File("socket"));
  int reloads = 0;
  DaemonLoop loop(daemon, *signals,
                  [&reloads] {
                    ++reloads;
                    ::kill(::getpid(), SIGTERM);
                  },
                  {.stop_timeout = milliseconds(100), .stall_timeout = milliseconds(10'000)});
  ::kill(::getpid(), SIGHUP);
  CHECK(loop.Run().ok());
  CHECK(reloads == 1);
  CHECK(daemon.stopped.load());
}

}  // namespace dws
