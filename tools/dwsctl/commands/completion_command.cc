#include <CLI/CLI.hpp>

#include <memory>

#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/commands/completion_script.h"

namespace dws::dwsctl {

// This is not an AddCommand: its output is a script, so it has no --json.
void AddCompletionCommand(CLI::App& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Prints the completion script for a shell (bash).")
          ->group(kShellGroup);
  command->footer(
      "Examples:\n"
      "  source <(dwsctl completion bash)\n"
      "  dwsctl completion bash > /usr/share/bash-completion/completions/dwsctl\n\n" +
      std::string(kExitCodeHelp));
  command->add_option("shell", *shell, "the shell")
      ->type_name("bash")
      ->required()
      ->check(CLI::Validator(CLI::IsMember({"bash"})).description(""));
  command->callback([&app, shell, &context] {
    context.console.Out(BashCompletion(app));
    context.code = ExitCode::kOk;
  });
}

}  // namespace dws::dwsctl
