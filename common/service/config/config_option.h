// The operations on a CLI11 option that Config needs: get its type, assign a value, and print it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/service/config/config_file.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace dws {

// Returns whether the option takes no value on the command line, where its presence means true.
bool IsSwitch(const CLI::Option& option);
// Returns whether the option may be given several times.
bool IsList(const CLI::Option& option);
// Returns whether the option is only about one run of the program, such as --check-config. Then it
// is not allowed in a file or in the environment.
bool IsFlagOnly(const CLI::Option& option);

// The option's values before any layer is read.
std::vector<std::string> DefaultValues(const CLI::Option& option);

// "expected an integer, found a string", or nullopt.
std::optional<std::string> WrongType(const CLI::Option& option, const ConfigEntry& entry);

// Converts, checks and stores `values`. Returns a text that says what is wrong, or nullopt.
std::optional<std::string> Assign(CLI::Option& option, const std::vector<std::string>& values);

// Returns what Assign stored, as the file would write it: a switch is "true" or "false".
std::vector<std::string> AssignedValues(const CLI::Option& option);

// "7", "true", "\"text\"" or "[\"a\", \"b\"]".
std::string TomlValue(const CLI::Option& option, const std::vector<std::string>& values);

}  // namespace dws
