// The options of the codec benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dws::bench {

// The options of the codec benchmark.
struct Options {
  uint64_t size_bytes = uint64_t{2} << 30;
  int rounds = 5;
  std::string trace;              // folder of safetensors files; empty: synthetic weights
  std::vector<std::string> only;  // groups to run; empty: all
  bool no_daemons = false;        // for the script that starts the other part
  bool probe = false;

  bool Wants(const std::string& group) const {
    for (const std::string& wanted : only) {
      if (wanted == group) return true;
    }
    return only.empty();
  }
};

}  // namespace dws::bench
