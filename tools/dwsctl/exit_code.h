// How dwsctl ends, for scripts; --help lists the same.
#pragma once

namespace dws::dwsctl {

enum class ExitCode : int {
  kOk = 0,           // the daemon answered and is ready
  kNotReady = 1,     // it answered and is not ready; the answer says why
  kUsage = 2,        // the command line is wrong
  kUnreachable = 3,  // nobody answers at that address, or not in time
  kRefused = 4,      // the daemon answered with an error
};

inline constexpr char kExitCodeHelp[] =
    "Exit status:\n"
    "  0  the daemon answered and is ready\n"
    "  1  it answered and is not ready; the answer says why\n"
    "  2  the command line is wrong\n"
    "  3  no daemon answers at that address, or not in time\n"
    "  4  the daemon answered with an error";

}  // namespace dws::dwsctl
