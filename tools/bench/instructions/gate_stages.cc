// The program of the gate, which gate.py runs by itself and under callgrind. All that it prints but the
// processor's instruction set is the same on every machine.
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <zstd.h>

#include <cstdint>
#include <string>

#include "common/base/instruction_set.h"
#include "tools/bench/instructions/figures.h"
#include "tools/bench/instructions/stages.h"
#include "tools/bench/instructions/trace_bytes.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeBytes = uint64_t{4} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char* kBuild = "sanitised";
#elif defined(NDEBUG)
constexpr const char* kBuild = "optimised";
#else
constexpr const char* kBuild = "default";
#endif

int Main(int argc, char** argv) {
  if (argc > 2) {
    fmt::print(stderr, "usage: gate_stages [TRACE]  (a folder of safetensors files)\n");
    return 2;
  }
  PrintWith("build", kBuild);
  PrintWith("compiler", __VERSION__);
  PrintWith("glibc", gnu_get_libc_version());
  PrintWith("zstd", ZSTD_versionString());
  PrintWith("instruction set", std::string(ToString(ActiveInstructionSet())));
  Status status = CountStages(kSizeBytes);
  if (status.ok() && argc == 2) status = PrintTraceBytes(argv[1]);
  if (status.ok()) return 0;
  fmt::print(stderr, "gate_stages: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
