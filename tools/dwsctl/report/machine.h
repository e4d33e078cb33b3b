// What a report says of the machine and of the daemon's process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/dwsctl/report/report.h"

namespace dws::dwsctl {

// Adds "machine.txt" (kernel, processor, memory), "disk.txt" of `paths`, and "gpu.txt". Bounded in
// time: each program that it runs has ten seconds.
void AddMachine(const std::vector<std::string>& paths, Report& report);

// Adds "process.txt" (limits, memory, control group) and "log.txt" (the last lines, from the
// journal or from the file that the daemon's stderr is) of process `pid`.
void AddProcess(pid_t pid, Report& report);

}  // namespace dws::dwsctl
