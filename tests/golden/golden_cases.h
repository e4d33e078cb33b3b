// The golden objects of format version 1, as this build makes them. make_golden writes them to
// tests/golden/delta_v1, golden_test compares.
#pragma once

#include <string>
#include <vector>

#include "common/model/layout.h"
#include "tests/common/delta/objects.h"

namespace dws::golden {

struct GoldenCase {
  std::string name;  // damaged ones are named for their damage
  RankLayout layout;
  uint64_t seed = 0;         // the base is RandomState(layout, seed)
  bool compare_base = true;  // false: an object of full tensors, whose digests before mean nothing
  std::string outcome;       // "OK", "DATA_LOSS", ...
  samples::Bytes object;
  samples::State after;  // when OK
};

// All of them. The same on every machine, up to the version of zstd.
std::vector<GoldenCase> MakeGoldenCases();

}  // namespace dws::golden
