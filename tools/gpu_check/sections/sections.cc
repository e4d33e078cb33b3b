// In the order in which they run: a section relies on nothing that a later one checks.
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr Section kSections[] = {
    {.name = "info", .seconds_max = 30, .run = RunInfo},
    {.name = "kernels",
     .seconds_max = 90,
     .tests = "[#kernels_stage_test],[#kernels_damage_test],[#kernels_diff_test],[#kernels_gather_"
              "test]"},
    {.name = "staging",
     .seconds_max = 60,
     .tests = "[#staging_test],[#class_split_staging_test],[#staging_cap_test]"},
    {.name = "memory", .seconds_max = 40, .tests = "[#cuda_device_test],[#cuda_region_test]"},
    {.name = "ipc", .seconds_max = 60, .run = RunIpc},
    {.name = "kill", .seconds_max = 30, .run = RunKill},
    {.name = "nccl", .seconds_max = 60, .run = RunNccl},
    {.name = "bench", .seconds_max = 100, .run = RunBench},
    {.name = "capture", .seconds_max = 60, .run = RunCapture},
    {.name = "slowdown", .seconds_max = 40, .run = RunSlowdown},
};

}  // namespace

std::span<const Section> Sections() { return kSections; }

}  // namespace dws::gpu_check
