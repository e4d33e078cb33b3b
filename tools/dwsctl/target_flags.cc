#include <CLI/CLI.hpp>

#include "tools/dwsctl/command.h"

namespace dws::dwsctl {

void AddTargetFlags(CLI::App& command, TargetFlags& flags) {
  auto* address = command.add_option("--address", flags.address, "the daemon's host:port");
  command.add_option("--socket", flags.socket, "the daemon's unix socket")->excludes(address);
  command
      .add_option("--run-dir", flags.run_dir, "where to look for a socket when neither is given")
      ->capture_default_str();
  command
      .add_option_function<double>(
          "--timeout",
          [&flags](const double& seconds) {
            flags.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
          },
          "seconds to wait for an answer; default 5")
      ->check(CLI::Range(0.001, 3600.0));
}

}  // namespace dws::dwsctl
