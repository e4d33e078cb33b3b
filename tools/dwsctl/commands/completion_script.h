// The bash completion of a command line, made of the command line itself.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace dws::dwsctl {

// Completes commands, flags, and values by the name of their type: files (kFileValue), folders
// (kFolderValue) and sockets of the run directory (kSocketValue).
std::string BashCompletion(const CLI::App& app);

}  // namespace dws::dwsctl
