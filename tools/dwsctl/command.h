// What all commands of dwsctl share: their form, and the flags that name a daemon. A command is a
// file of its own with a function Add<Name>Command, which main.cc calls.
#pragma once

#include <chrono>
#include <string>

#include "tools/dwsctl/exit_code.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dws::dwsctl {

// What a command leaves behind; main prints `out` and `error` and exits with `code`.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::string out;
  std::string error;
};

// Which daemon. With neither address nor socket: the only one in `run_dir`.
struct TargetFlags {
  std::string address;  // host:port
  std::string socket;   // path of a unix socket
  std::string run_dir = "/run/dws";
  std::chrono::milliseconds timeout{5000};
};

// Adds --address, --socket, --run-dir and --timeout to a command; `flags` outlives the parsing.
void AddTargetFlags(CLI::App& command, TargetFlags& flags);

// Adds `status`; `outcome` is set when it was the command given.
void AddStatusCommand(CLI::App& app, Outcome& outcome);

}  // namespace dws::dwsctl
