// What all commands of dwsctl share: their form, and the flags that name a daemon. A command is a
// file of its own with a function Add<Name>Command, which AddAllCommands calls.
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

// What a command is given and leaves behind. Outlives the parsing.
struct Context {
  Console& console;
  ExitCode code = ExitCode::kUsage;  // set by the command that ran
};

// PEM files for mutual TLS, all three or none.
struct TlsFlags {
  std::string ca;
  std::string cert;
  std::string key;
  std::string server_name;  // expected in the daemon's certificate instead of the dialled name
};

// Which daemon, and how long to wait for it. With neither address nor socket: the only one in
// `run_dir`.
struct TargetFlags {
  std::string address;  // host:port
  std::string socket;   // path of a unix socket
  std::string run_dir = "/run/dws";
  std::chrono::milliseconds timeout{5000};
  TlsFlags tls;
};

// What names the kinds of values in --help, and tells bash what to complete.
inline constexpr char kFileValue[] = "FILE";
inline constexpr char kFolderValue[] = "DIR";
inline constexpr char kSocketValue[] = "SOCKET";

// Adds --address, --socket, --run-dir, --timeout and the TLS flags; `flags` outlives the parsing.
void AddTargetFlags(CLI::App& command, TargetFlags& flags);
// Those of them that `watch`, which takes several daemons, shares.
void AddConnectionFlags(CLI::App& command, TargetFlags& flags);

// Adds a command; the first line of its description is its summary. `examples` are lines of shell,
// shown at the end of --help above the exit codes. `json` gets a flag --json.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::vector<std::string>& examples, bool& json);

// Adds a command that has commands of its own, of which one has to be named.
CLI::App* AddGroup(CLI::App& app, const std::string& name, const std::string& description,
                   const std::vector<std::string>& examples);

// Prints "dwsctl: message" to the error output. The code for an error that arose here: what is
// wrong with the command line, or with reaching the daemon.
ExitCode Fail(Console& console, const Status& error);
// For an error that a daemon answered with: what it calls invalid or not found is no mistake of
// this command line.
ExitCode FailAnswer(Console& console, const Status& error);

// dwsctl with all its commands. The commands write to `context.console`.
void AddAllCommands(CLI::App& app, Context& context);

void AddApplyCommand(CLI::App& app, Context& context);
void AddCertificatesCommand(CLI::App& app, Context& context);
void AddCompletionCommand(CLI::App& app, Context& context);
void AddEstimateCommand(CLI::App& app, Context& context);
void AddInspectCommand(CLI::App& app, Context& context);
void AddMaterializeCommand(CLI::App& app, Context& context);
void AddOperationCommands(CLI::App& app,
                          Context& context);  // verify, resync, drain, evict, forget-stream
void AddPackCommand(CLI::App& app, Context& context);
void AddReceiversCommand(CLI::App& app, Context& context);
void AddSquashCommand(CLI::App& app, Context& context);
void AddStatusCommand(CLI::App& app, Context& context);
void AddVersionsCommand(CLI::App& app, Context& context);
void AddWatchCommand(CLI::App& app, Context& context);

}  // namespace dws::dwsctl
