// Makes the bash completion from the declared commands and flags.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace dws::dwsctl {

// Completes commands, flags and values. The name of a value's type decides: files (kFileValue),
// folders (kFolderValue) or sockets of the run directory (kSocketValue).
std::string BashCompletion(const CLI::App& app);

}  // namespace dws::dwsctl
