// The life of a daemon's process, the same for both: configuration, log, signals, systemd. What
// differs is a DaemonProgram; main.cc hands it over and returns what RunProgram returns.
//
// Exit status: 0 stopped as asked, 1 could not start or go on, 2 the configuration is mistaken, 3
// what it keeps on disk is damaged. After 2 and 3 starting again does not help (deploy/systemd).
#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/service/config/config.h"
#include "common/service/program/daemon_loop.h"

namespace dws {

struct DaemonProgram {
  std::string name;         // "dws-sender"
  std::string description;  // what it is for, in a sentence
  // Declares the options that the other daemon does not have.
  std::function<void(CLI::App&)> declare;
  // Fills in defaults that depend on other options; rejects what no option can see alone.
  std::function<void(Config&)> finish;
  std::function<Result<RunningDaemon>()> start;
};

// A program with options of its own, at their defaults: a reload reads everything into a second
// one.
using MakeProgram = DaemonProgram (*)();

int RunProgram(MakeProgram make, int argc, char** argv);

}  // namespace dws
