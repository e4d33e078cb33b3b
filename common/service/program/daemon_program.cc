#include "common/service/program/daemon_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <vector>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/service/build_version.h"
#include "common/service/program/daemon_flags.h"
#include "common/service/program/daemon_loop.h"
#include "common/service/program/heap_trimmer.h"
#include "common/service/program/shutdown_signal.h"

namespace dws {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitMistaken = 2;
constexpr int kExitDamaged = 3;

// The headings become headings of the manual page.
constexpr char kFooter[] =
    "Configuration:\n"
    "An option --some-name is also the key some-name of the file and DWS_SOME_NAME in the\n"
    "environment; a table of the file is a prefix: [tls] ca is --tls-ca. The environment "
    "overrides\n"
    "the file, a flag overrides both. A list is an array in the file, has commas in the "
    "environment,\n"
    "and is a flag that is repeated.\n\n"
    "Signals:\n"
    "SIGTERM or SIGINT stops the daemon; a second one ends the wait that --stop-timeout allows.\n"
    "The end of the process that --owner-pid names is as a SIGTERM.\n"
    "SIGHUP reads certificates and the log level again.\n\n"
    "Exit status:\n"
    "0 stopped as asked, 1 could not start or continue, 2 the configuration has mistakes,\n"
    "3 its files on disk are damaged.";

Config::Sources ReadSources(int argc, char** argv) {
  Config::Sources sources;
  sources.arguments.assign(argv + 1, argv + argc);
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    sources.environment.emplace_back(*variable);
  }
  return sources;
}

// A program with its options and their values.
class ConfiguredProgram {
 public:
  ConfiguredProgram(MakeProgram make, const Config::Sources& sources)
      : program_(make()), app_(program_.description, program_.name) {
    app_.set_version_flag("--version", VersionText(program_.name));
    app_.footer(kFooter);
    program_.declare(app_);
    AddDaemonFlags(app_, flags_);
    PosixFileSystem files;
    config_.emplace(Config::Load(app_, files, sources));
    program_.finish(*config_);
  }

  const DaemonProgram& program() const { return program_; }
  const DaemonFlags& flags() const { return flags_; }
  const Config& config() const { return *config_; }
  std::string Help() const { return app_.help(); }
  std::string Version() const { return app_.version(); }

 private:
  DaemonProgram program_;
  DaemonFlags flags_;
  CLI::App app_;
  std::optional<Config> config_;
};

int PrintCheck(const Config& config) {
  fmt::print("{}", config.EffectiveText());
  for (const std::string& warning : config.warnings()) fmt::print(stderr, "warning: {}\n", warning);
  for (const Config::Mistake& mistake : config.mistakes()) {
    fmt::print(stderr, "{}\n",
               EscapeUnprintable(fmt::format("{}: {}", mistake.source, mistake.text)));
  }
  return config.mistakes().empty() ? 0 : kExitMistaken;
}

void LogConfig(const Config& config) {
  for (const std::string& warning : config.warnings()) {
    LogWarning("config_unknown", {{"reason", warning}});
  }
  for (const Config::Mistake& mistake : config.mistakes()) {
    LogError("config_mistake", {{"source", mistake.source}, {"reason", mistake.text}});
  }
}

// Reads all layers again and applies the options that can change while the daemon runs.
void ReloadConfig(MakeProgram make, const Config::Sources& sources, const Config& running) {
  const ConfiguredProgram again(make, sources);
  LogConfig(again.config());
  if (!again.config().mistakes().empty()) {
    LogError("reload_refused", {{"mistakes", again.config().mistakes().size()}});
    return;
  }
  SetLogLevel(again.flags().level());
  std::vector<std::string> later;
  for (const std::string& name : again.config().DifferentFrom(running)) {
    if (name != "log-level") later.push_back(name);
  }
  if (!later.empty()) {
    LogWarning("reload_needs_restart", {{"options", fmt::format("{}", fmt::join(later, ", "))}});
  }
  LogInfo("reloaded", {{"log_level", again.flags().log_level}});
}

// If a standard descriptor is closed at the start, the next file that is opened would get its
// number, and the log's lines would go into that file.
void OpenStandardDescriptors(int, char**, char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    static_cast<void>(::open("/dev/null", O_RDWR));  // gets the lowest free number: this one
  }
  // What was inherited, such as the lock of a folder, is not for the commands that a daemon runs.
  static_cast<void>(::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC));
}

// Runs before main and before the constructors of libraries, because some of them open descriptors.
// It uses only system calls, so it needs no initialized library.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kOpenFirst)(int, char**, char**) = OpenStandardDescriptors;

int Serve(MakeProgram make, const Config::Sources& sources, const ConfiguredProgram& configured) {
  Result<ShutdownSignal> signal = ShutdownSignal::Install();
  if (!signal.ok()) {
    LogError("start_failed", {{"reason", Message(signal.status())}});
    return kExitFailed;
  }
  const HeapTrimmer trimmer;
  const Result<std::unique_ptr<Daemon>> daemon = configured.program().start();
  if (!daemon.ok()) {
    LogError("start_failed", {{"reason", Message(daemon.status())}});
    return absl::IsDataLoss(daemon.status()) ? kExitDamaged : kExitFailed;
  }
  DaemonLoop loop(**daemon, *signal, [&] { ReloadConfig(make, sources, configured.config()); },
                  {.stop_timeout = configured.flags().stop_timeout(),
                   .stall_timeout = configured.flags().stall_timeout(),
                   .owner_pid = configured.flags().owner_pid});
  return loop.Run().ok() ? 0 : kExitFailed;
}

}  // namespace

int RunProgram(MakeProgram make, int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the log may go away
  KeepFreedMemory();
  const Config::Sources sources = ReadSources(argc, argv);
  const ConfiguredProgram configured(make, sources);
  for (const std::string& argument : sources.arguments) {
    if (argument == "--help" || argument == "-h") {
      fmt::print("{}", configured.Help());
      return 0;
    }
    if (argument == "--version") {
      fmt::print("{}\n", configured.Version());
      return 0;
    }
  }
  if (configured.flags().check_config) return PrintCheck(configured.config());
  InitLog(configured.program().name, configured.flags().level(), configured.flags().format());
  LogConfig(configured.config());
  const bool mistaken = !configured.config().mistakes().empty();
  const int status = mistaken ? kExitMistaken : Serve(make, sources, configured);
  LogRepeatCounts(/*all=*/true);
  return status;
}

}  // namespace dws
