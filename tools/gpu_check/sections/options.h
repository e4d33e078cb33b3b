// The options of gpu_check.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dws::gpu_check {

struct Options {
  uint64_t size_bytes = uint64_t{16} << 30;  // of the timed weights; fewer if they do not fit
  int rounds = 7;
  int time_factor = 1;            // on what sections may take
  std::string gpu;                // UUID; empty: the first that this process sees
  std::vector<std::string> only;  // sections; empty: all
  // The program of the kernel suite; empty: the one beside this program.
  std::string kernel_tests;
  std::string kernels;  // file of the kernels to measure; empty: this program's
};

}  // namespace dws::gpu_check
