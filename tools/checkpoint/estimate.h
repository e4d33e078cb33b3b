// What syncing from one checkpoint to another would take: how much changes where, and how many
// bytes that is as a delta, as slime's files, and in full. Every size is that of bytes that were
// really made: `pack` writes objects of these sizes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "tools/checkpoint/encode.h"
#include "tools/checkpoint/progress.h"
#include "tools/checkpoint/tensors.h"

namespace dws::checkpoint {

// Tensors whose names differ in numbers only.
struct GroupEstimate {
  std::string name;  // GroupOf (tensor_group.h)
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;        // of the elements
  uint64_t bytes = 0;          // of the tensors
  uint64_t changed_bytes = 0;  // of the changed elements
};

// Tensors by density. Bin 0 has those that do not change, bin i those up to kDensityEnds[i - 1].
inline constexpr std::array<double, 9> kDensityEnds = {0.0001, 0.001, 0.003, 0.01, 0.03,
                                                       0.1,    0.3,   0.9,   1.0};
struct DensityBin {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Estimate {
  uint64_t tensors = 0;  // that both have, as all that follows but the mismatches
  uint64_t changed_tensors = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;
  uint64_t changed_integers = 0;  // of them, those of integers: they have no ulp

  uint64_t full_bytes = 0;
  uint64_t fast_bytes = 0;  // a whole object of profile fast
  uint64_t wan_bytes = 0;   // the same of profile wan
  std::optional<uint64_t> slime_bytes;

  std::vector<GroupEstimate> groups;  // by changed bytes, most first, then by name
  StepCounts steps = {};
  std::array<DensityBin, kDensityEnds.size() + 1> densities = {};
  std::vector<TensorMismatch> mismatches;
};

struct EstimateOptions {
  bool slime = true;
};

// FAILED_PRECONDITION: they have no tensor in common. Errors of the progress, and as CheckUnchanged
// of either, which were settled when they were opened (settled.h).
Result<Estimate> EstimateSync(const Checkpoint& a, const Checkpoint& b,
                              const EstimateOptions& options, ThreadPool& pool,
                              const Progress& progress);

}  // namespace dws::checkpoint
