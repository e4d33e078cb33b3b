// dwsctl: the command line over both daemons.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "common/service/build_version.h"
#include "tools/dwsctl/command.h"

int main(int argc, char** argv) {
  using dws::dwsctl::ExitCode;

  CLI::App app("Asks DWS daemons (dws-sender, dws-receiver) how they are.", "dwsctl");
  app.set_version_flag("--version", dws::VersionText("dwsctl"));
  app.require_subcommand(1);
  app.footer(dws::dwsctl::kExitCodeHelp);

  dws::dwsctl::Outcome outcome;
  dws::dwsctl::AddStatusCommand(app, outcome);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's way to say --help, --version or a wrong flag
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  fmt::print("{}", outcome.out);
  fmt::print(stderr, "{}", outcome.error);
  return static_cast<int>(outcome.code);
}
