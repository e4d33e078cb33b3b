// Makes the golden objects of format version 1. make_golden writes them to tests/golden/delta_v1,
// golden_test compares the files with them.
#pragma once

#include <string>
#include <vector>

#include "common/model/layout.h"
#include "tests/common/delta/objects.h"

namespace dws::golden {

struct GoldenCase {
  std::string name;  // of a damaged object: its damage
  RankLayout layout;
  uint64_t seed = 0;         // the base is RandomState(layout, seed)
  bool compare_base = true;  // false for full tensors, whose digests before have no meaning
  std::string outcome;       // "OK", "DATA_LOSS", ...
  samples::Bytes object;
  samples::State after;  // if the outcome is OK
};

// All of them. The same on every machine, up to the version of zstd.
std::vector<GoldenCase> MakeGoldenCases();

}  // namespace dws::golden
