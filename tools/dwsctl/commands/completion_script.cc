#include "tools/dwsctl/commands/completion_script.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "tools/dwsctl/base/command.h"

namespace dws::dwsctl {
namespace {

// The functions that the generated cases in _NAME_command call.
constexpr char kFunctions[] =
    R"(# Sockets in the run directory that the command line names, else the default one.
_@_sockets() {
  local folder=/run/dws i path
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} == --run-dir ]]; then
      folder=${COMP_WORDS[i + 1]}
      [[ $folder == '=' ]] && folder=${COMP_WORDS[i + 2]}
    fi
  done
  for path in "$folder"/*.sock; do
    [[ -S $path && $path == "$1"* ]] && COMPREPLY+=("$path")
  done
  compopt -o filenames 2>/dev/null
}

# Files, or with -d folders, that begin with $2.
_@_files() {
  local path
  while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$2")
  compopt -o filenames 2>/dev/null
}

_@_words() {
  local word
  for word in $1; do [[ $word == "$2"* ]] && COMPREPLY+=("$word"); done
}

_@() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command='' i
  COMPREPLY=()
  # bash makes three words of --flag=value.
  if [[ $current == '=' ]]; then
    current=''
  elif [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
)";

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<std::string> Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

std::string Joined(const std::vector<std::string>& words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

// The shell line that completes a value of `type`; "" for unknown types.
std::string CompleteValue(const std::string& type) {
  if (type == kFileValue) return R"(_@_files -f "$current")";
  if (type == kFolderValue) return R"(_@_files -d "$current")";
  if (type == kSocketValue) return R"(_@_sockets "$current")";
  return "";
}

// The cases of one command: values, chosen by the flag before, then flags, then positional words.
std::string CommandCase(const CLI::App& command, const std::string& name) {
  std::vector<std::string> flags;
  std::string values;
  std::string alone;
  for (const CLI::Option* option : command.get_options()) {
    if (option->nonpositional()) {
      flags.push_back(Joined(Names(*option), " "));
      if (!TakesValue(*option)) continue;
      const std::string complete = CompleteValue(option->get_type_name());
      values += fmt::format("        {}) {}{}return ;;\n", Joined(Names(*option), "|"), complete,
                            complete.empty() ? "" : "; ");
    } else if (const std::string type = option->get_type_name(); type == kFileValue) {
      alone = CompleteValue(type);
    } else {
      alone = fmt::format(R"(_@_words '{}' "$current")", type);  // the type lists the words: "bash"
    }
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub : command.get_subcommands({})) commands.push_back(sub->get_name());
  if (!commands.empty()) {
    alone = fmt::format(R"(_@_words '{}' "$current")", Joined(commands, " "));
  }
  std::string text = fmt::format("    '{}')\n", name);
  if (!values.empty()) text += "      case $previous in\n" + values + "      esac\n";
  text += fmt::format(
      "      if [[ $current == -* ]]; then\n"
      "        _@_words '{}' \"$current\"\n"
      "      else\n"
      "        {}\n"
      "      fi\n"
      "      ;;\n",
      Joined(flags, " "), alone.empty() ? ":" : alone);
  return text;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::vector<std::string> commands;
  std::string cases = CommandCase(app, "");
  for (const CLI::App* command : app.get_subcommands({})) {
    commands.push_back(command->get_name());
    cases += CommandCase(*command, command->get_name());
  }
  std::string script = fmt::format(
      "# bash completion of {0}, printed by `{0} completion bash`.\n\n", app.get_name());
  script += kFunctions;
  script += fmt::format(
      "      {}) command=${{COMP_WORDS[i]}}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $command in\n",
      Joined(commands, "|"));
  script += cases + "  esac\n}\n\ncomplete -F _@ @\n";
  for (size_t at = script.find('@'); at != std::string::npos; at = script.find('@', at)) {
    // Every @ is replaced by the program's name, so the script must not contain "${array[@]}".
    script.replace(at, 1, app.get_name());
  }
  return script;
}

}  // namespace dws::dwsctl
