// The program of the gate, which gate.py runs by itself and under callgrind. All that it prints but
// the processor's instruction set is the same on every machine.
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <zstd.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/instruction_set.h"
#include "tools/bench/instructions/figures.h"
#include "tools/bench/instructions/stages.h"
#include "tools/bench/instructions/step_count.h"
#include "tools/bench/instructions/trace_bytes.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeBytes = uint64_t{4} << 20;
// The size of a block, which is the unit of sizes; also the most that can be single-stepped in a
// few minutes.
constexpr uint64_t kStepKib = 128;
constexpr uint64_t kStepKibMax = 4096;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char* kBuild = "sanitised";
#elif defined(NDEBUG)
constexpr const char* kBuild = "optimised";
#else
constexpr const char* kBuild = "default";
#endif

int ExitStatus(const Status& status) {
  if (status.ok()) return 0;
  fmt::print(stderr, "gate_stages: {}\n", ToString(status));
  return 1;
}

Status CountAll(const char* trace) {
  DWS_RETURN_IF_ERROR(CountSparseStages(kSizeBytes));
  DWS_RETURN_IF_ERROR(CountDenseStages(kSizeBytes));
  return trace == nullptr ? OkStatus() : PrintTraceBytes(trace);
}

// The size after --steps; nullopt: not one that can be stepped.
std::optional<uint64_t> SteppedBytes(std::string_view kib) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(kib.data(), kib.data() + kib.size(), value);
  if (error != std::errc() || end != kib.data() + kib.size()) return std::nullopt;
  if (value == 0 || value % kStepKib != 0 || value > kStepKibMax) return std::nullopt;
  return value << 10;
}

int Main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  std::optional<uint64_t> stepped;
  if (arguments.size() == 2 && arguments[0] == "--steps") stepped = SteppedBytes(arguments[1]);
  if (arguments.size() > 1 && !stepped.has_value()) {
    fmt::print(stderr,
               "usage: gate_stages [TRACE | --steps KIB]\n"
               "  TRACE: a folder of safetensors files; KIB: a multiple of {}, at most {}\n",
               kStepKib, kStepKibMax);
    return 2;
  }
  PrintWith("build", kBuild);
  PrintWith("compiler", __VERSION__);
  PrintWith("glibc", gnu_get_libc_version());
  PrintWith("zstd", ZSTD_versionString());
  PrintWith("instruction set", std::string(ToString(ActiveInstructionSet())));
  if (stepped.has_value()) {
    return CountSteps([&] { return ExitStatus(CountSparseStages(*stepped)); });
  }
  return ExitStatus(CountAll(arguments.empty() ? nullptr : argv[1]));
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
