// Shared by `verify`, `resync`, `drain`, `undrain`, `evict`, `forget-stream` and `commit`: a call
// that streams its progress until it is finished.
#pragma once

#include <optional>
#include <string>

#include "proto/admin.pb.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/client/admin_client.h"

namespace dws::dwsctl {

// The flags of commands that run an operation on a daemon.
struct OperationFlags {
  TargetFlags target;
  bool json = false;     // prints every message on a separate line, and nothing else
  bool no_wait = false;  // hang up once the daemon has begun
};

struct OperationOutcome {
  ExitCode code = ExitCode::kOk;  // of the call; errors have already been printed
  v1::StatusReply daemon;         // its status before the operation
  v1::OperationProgress last;     // `finished`, unless no_wait

  // For messages: "rollout-0", "sender of rank 2".
  std::string Name() const;
};

// Shows progress on the error output: redrawn in place on a terminal, otherwise one line per step.
// ^C hangs up; `after_hangup` is the text that explains what that means.
OperationOutcome RunOperation(const OperationFlags& flags, const OperationRequest& request,
                              const std::string& after_hangup, Console& console);

void AddVerifyCommand(CLI::App& app, Context& context);
void AddResyncCommand(CLI::App& app, Context& context);
void AddDrainCommand(CLI::App& app, Context& context);
void AddUndrainCommand(CLI::App& app, Context& context);
void AddEvictCommand(CLI::App& app, Context& context);
void AddForgetStreamCommand(CLI::App& app, Context& context);
void AddCommitCommand(CLI::App& app, Context& context);

}  // namespace dws::dwsctl
