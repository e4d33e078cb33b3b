// Runs a program and takes what it prints.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace dws::dwsctl {

// The output of `words` (both descriptors), its first `bytes_max`. The program has no input.
// NOT_FOUND: there is no such program. DEADLINE_EXCEEDED: it was killed; one that a hung mount
// keeps from ending is left behind. UNAVAILABLE: it failed; the message has its status and its
// output.
Result<std::string> OutputOf(std::vector<std::string> words, std::chrono::milliseconds deadline,
                             size_t bytes_max);

}  // namespace dws::dwsctl
