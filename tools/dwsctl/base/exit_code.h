// The exit codes of dwsctl, for scripts. This is the only list; --help and docs/dwsctl.md show it.
#pragma once

namespace dws::dwsctl {

enum class ExitCode : int {
  kOk = 0,             // done; status, watch: ready
  kNotReady = 1,       // status, watch: it answered and is not ready
  kUsage = 2,          // the command line is wrong
  kUnreachable = 3,    // no daemon answers there, or not in time
  kRefused = 4,        // the daemon answered with an error
  kMismatch = 5,       // weights or tensors do not belong together
  kDamaged = 6,        // a file is damaged or cut off
  kFile = 7,           // a file cannot be read or written, or the output cannot be written
  kInterrupted = 130,  // ^C, SIGTERM or SIGHUP before the end
};

inline constexpr char kExitCodeHelp[] =
    "Exit status:\n"
    "  0    done; status and watch: the daemon is ready\n"
    "  1    status and watch: it answered and is not ready; the answer says why\n"
    "  2    the command line is wrong\n"
    "  3    no daemon answers at that address, or not in time\n"
    "  4    the daemon answered with an error\n"
    "  5    weights or tensors do not match\n"
    "  6    a file is damaged or cut off\n"
    "  7    a file or the output cannot be read or written\n"
    "  130  ended by ^C, SIGTERM or SIGHUP (watch: 0)\n";

}  // namespace dws::dwsctl
