// Shared by all commands of dwsctl: how a command is declared, and the flags that name a daemon.
// Each command has its own file with a function Add<Name>Command, which AddAllCommands calls.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/dwsctl/base/console.h"
#include "tools/dwsctl/base/exit_code.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dws::dwsctl {

// A command's input and result. Outlives the parsing.
struct Context {
  Console& console;
  ExitCode code = ExitCode::kUsage;  // set by the command that ran
};

// PEM files for mutual TLS. Either all three are given or none.
struct TlsFlags {
  std::string ca;
  std::string cert;
  std::string key;
  std::string server_name;  // name expected in the daemon's certificate; "": the dialled name
};

inline constexpr char kRunDirDefault[] = "/run/dws";
// In the environment: the daemon, if no flag names one or another run directory.
inline constexpr char kAddressVariable[] = "DWS_ADDRESS";
inline constexpr char kSocketVariable[] = "DWS_SOCKET";

// The daemon to call, and how long to wait for it. With neither address nor socket: that of the
// environment, else the only socket in `run_dir`.
struct TargetFlags {
  std::string address;  // host:port
  std::string socket;   // path of a unix socket
  std::string run_dir = kRunDirDefault;
  std::chrono::milliseconds timeout{5000};
  TlsFlags tls;
};

// The names of value types in --help. The bash completion uses them to choose what to complete.
inline constexpr char kFileValue[] = "FILE";
inline constexpr char kFolderValue[] = "DIR";
inline constexpr char kSocketValue[] = "SOCKET";

// Adds --address, --socket, --run-dir, --timeout and the TLS flags; `flags` outlives the parsing.
void AddTargetFlags(CLI::App& command, TargetFlags& flags);
// Adds the flags that `watch` also has. `watch` takes several daemons.
void AddConnectionFlags(CLI::App& command, TargetFlags& flags);

// Under which heading `dwsctl --help` lists a command.
inline constexpr char kLookGroup[] = "Commands that look at daemons";
inline constexpr char kOperateGroup[] = "Commands that operate daemons";
inline constexpr char kFilesGroup[] = "Commands for checkpoints, deltas and files";
inline constexpr char kShellGroup[] = "Commands for the shell";

// Adds a command; the first line of its description is its summary. `examples` are lines of shell,
// shown at the end of --help above the exit codes. `json` gets a flag --json.
CLI::App* AddCommand(CLI::App& app, const char* group, const std::string& name,
                     const std::string& description, const std::vector<std::string>& examples,
                     bool& json);

// Prints "dwsctl: message" to the error output, and returns the exit code for an error on this
// side: a wrong command line, or a daemon that cannot be reached.
ExitCode Fail(Console& console, const Status& error);
// Like Fail, for an error that a daemon returned. Its INVALID_ARGUMENT or NOT_FOUND does not mean
// that the command line is wrong.
ExitCode FailAnswer(Console& console, const Status& error);

// Adds all commands of dwsctl to `app`. They write to `context.console`.
void AddAllCommands(CLI::App& app, Context& context);

void AddApplyCommand(CLI::App& app, Context& context);
void AddCompletionCommand(CLI::App& app, Context& context);
void AddEstimateCommand(CLI::App& app, Context& context);
void AddInspectCommand(CLI::App& app, Context& context);
void AddOperationCommands(
    CLI::App& app,
    Context& context);  // verify, resync, drain, undrain, evict, forget-stream, commit
void AddPackCommand(CLI::App& app, Context& context);
void AddPlanCommand(CLI::App& app, Context& context);
void AddReceiversCommand(CLI::App& app, Context& context);
void AddReportCommand(CLI::App& app, Context& context);
void AddSquashCommand(CLI::App& app, Context& context);
void AddStatusCommand(CLI::App& app, Context& context);
void AddVersionsCommand(CLI::App& app, Context& context);
void AddWatchCommand(CLI::App& app, Context& context);

}  // namespace dws::dwsctl
