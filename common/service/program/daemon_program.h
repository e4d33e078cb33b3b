// The main function that both daemons share: configuration, log, signals, systemd. The differences
// are in a DaemonProgram, which main.cc passes to RunProgram.
//
// Exit status: 0 stopped as asked, 1 could not start or continue, 2 the configuration has mistakes,
// 3 the daemon's files on disk are damaged. After 2 and 3 a restart does not help (deploy/systemd).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/service/config/config.h"
#include "common/service/program/daemon.h"

namespace dws {

// What one of the two daemons adds to the common program.
struct DaemonProgram {
  std::string name;         // "dws-sender"
  std::string description;  // its purpose, in a sentence
  // Declares the options that only this daemon has.
  std::function<void(CLI::App&)> declare;
  // Sets defaults that depend on other options; rejects wrong combinations of options.
  std::function<void(Config&)> finish;
  std::function<Result<std::unique_ptr<Daemon>>()> start;
};

// Makes a program with a separate set of options at their defaults. A reload reads the
// configuration into a second program.
using MakeProgram = DaemonProgram (*)();

int RunProgram(MakeProgram make, int argc, char** argv);

}  // namespace dws
