// dwsctl: the command-line tool for both daemons.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>

#include "common/base/printable.h"
#include "common/service/build_version.h"
#include "tools/dwsctl/base/command.h"

namespace {

// If an output is closed, a connection would get its descriptor number and receive what is printed.
// /dev/null takes the number instead; it is open only for reading, so that writing still fails.
void OpenStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    static_cast<void>(::open("/dev/null", O_RDONLY));  // this gets the lowest free number
  }
}

// Finds an option written as "--name=". CLI11 would use the next word as its value, even if that
// word is an option.
std::string_view WithoutValue(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') == word.size() - 1) return word;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using dws::dwsctl::ExitCode;

  OpenStandardDescriptors();
  // `dwsctl ... | head` must not kill the process: with SIGPIPE ignored, writes fail with EPIPE and
  // the command ends normally.
  std::signal(SIGPIPE, SIG_IGN);
  dws::dwsctl::Console console(STDOUT_FILENO, STDERR_FILENO);
  dws::dwsctl::Context context{.console = console};

  CLI::App app("Inspects and operates DWS daemons (dws-sender, dws-receiver).", "dwsctl");
  app.set_version_flag("--version", dws::VersionText("dwsctl"),
                       "Print version and build, and exit");
  app.require_subcommand(1);
  app.footer("dwsctl COMMAND --help describes a command, with examples.\n\n" +
             std::string(dws::dwsctl::kExitCodeHelp));
  dws::dwsctl::AddAllCommands(app, context);
  if (const std::string_view word = WithoutValue(argc, argv); !word.empty()) {
    console.Error(fmt::format(
        "dwsctl: {} has no value: expected one after the '=' without a space, as in {}VALUE\n"
        "Run with --help for more information.\n",
        dws::EscapeUnprintable(word), dws::EscapeUnprintable(word)));
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 throws for --help, --version and wrong flags
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  if (const int error = console.out_errno(); error != 0) {
    console.Error(fmt::format("dwsctl: the output cannot be written: {}\n", std::strerror(error)));
    return static_cast<int>(ExitCode::kFile);
  }
  return static_cast<int>(context.code);
}
