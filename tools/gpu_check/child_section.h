// Runs one section in a process of its own, and takes over what it prints.
#pragma once

#include <string>
#include <vector>

#include "tools/gpu_check/child_process.h"
#include "tools/gpu_check/results.h"

namespace dws::gpu_check {

struct SectionRun {
  std::string section;
  int seconds_max = 0;
  std::string program;  // empty: this one
  std::vector<std::string> arguments;
};

// Prints its lines as they come and appends them to `results`; a failed one more if it crashes, is
// not done in time (it is killed then) or does not say a word.
void RunInChild(const SectionRun& run, std::vector<CheckResult>& results);

}  // namespace dws::gpu_check
