// Runs one section in its own process, and collects what it prints.
#pragma once

#include <string>
#include <vector>

#include "tools/gpu_check/exporter/child_process.h"
#include "tools/gpu_check/report/results.h"

namespace dws::gpu_check {

// A section, and how its process is started.
struct SectionRun {
  std::string section;
  int seconds_max = 0;
  std::string program;  // empty: this program
  std::vector<std::string> arguments;
};

// Prints its lines as they arrive and appends them to `results`, with one failed check more if it
// crashes, does not end in time (it is killed then) or prints nothing.
void RunInChild(const SectionRun& run, std::vector<CheckResult>& results);

}  // namespace dws::gpu_check
