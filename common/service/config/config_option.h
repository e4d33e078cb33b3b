// How Config sees a CLI11 option: what type it has, how a value is assigned, how it is written.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/service/config/config_file.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace dws {

// Takes no value on the command line: true when it is there.
bool IsSwitch(const CLI::Option& option);
// May be given several times.
bool IsList(const CLI::Option& option);
// About one run of the program, such as --check-config: neither in a file nor in the environment.
bool IsFlagOnly(const CLI::Option& option);

// What the option is bound to before anything is read.
std::vector<std::string> DefaultValues(const CLI::Option& option);

// "expected an integer, found a string", or nullopt.
std::optional<std::string> WrongType(const CLI::Option& option, const ConfigEntry& entry);

// Converts, checks and stores. In words what is wrong, or nullopt.
std::optional<std::string> Assign(CLI::Option& option, const std::vector<std::string>& values);

// What Assign stored, as the file would say it: a switch is "true" or "false".
std::vector<std::string> AssignedValues(const CLI::Option& option);

// "7", "true", "\"text\"" or "[\"a\", \"b\"]".
std::string TomlValue(const CLI::Option& option, const std::vector<std::string>& values);

}  // namespace dws
