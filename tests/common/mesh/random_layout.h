// Random catalogues of small tensors, and random layouts of them in two forms: as the planner takes
// them and as arrays of labels.
#pragma once

#include <string>
#include <vector>

#include "tests/common/delta/samples.h"
#include "tests/common/mesh/naive.h"

namespace dws::mesh::naive {

// Canonical tensors that layouts may fuse with each other.
struct Family {
  enum class Kind { kAlike, kQkv } kind = Kind::kAlike;
  std::vector<uint32_t> tensors;
  uint64_t kv_heads = 1;
};

struct RandomCatalogue {
  Catalogue catalogue;
  std::vector<Family> families;
};

struct RandomLayout {
  MeshLayout layout;
  std::vector<Array> arrays;  // of its tensors
};

RandomCatalogue MakeCatalogue(samples::Random& random);
// Every element is on at least one rank.
RandomLayout MakeLayout(samples::Random& random, const RandomCatalogue& catalogue);

}  // namespace dws::mesh::naive
