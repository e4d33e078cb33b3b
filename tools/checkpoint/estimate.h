// Estimates the cost of syncing from one checkpoint to another: how much changes where, and how
// many bytes that is as a delta, as slime's files, and in full; and the same of views of it
// (common/quantise/view.h). It really encodes the deltas, so `pack` writes objects of exactly these
// sizes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "tools/checkpoint/parts/encode.h"
#include "tools/checkpoint/parts/progress.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

// Tensors whose names differ only in numbers.
struct GroupEstimate {
  std::string name;  // GroupOf (tensor_group.h)
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;        // of the elements
  uint64_t bytes = 0;          // of the tensors
  uint64_t changed_bytes = 0;  // of the changed elements
};

// Bins of tensors by density. Bin 0 has unchanged tensors, bin i those up to kDensityEnds[i - 1].
inline constexpr std::array<double, 9> kDensityEnds = {0.0001, 0.001, 0.003, 0.01, 0.03,
                                                       0.1,    0.3,   0.9,   1.0};
struct DensityBin {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

// What follows a view, in place of the tensors themselves.
struct ViewEstimate {
  std::string name;
  uint64_t tensors = 0;    // of the view
  uint64_t quantised = 0;  // of the checkpoints' tensors
  uint64_t full_bytes = 0;
  uint64_t fast_bytes = 0;  // as in Estimate
  uint64_t wan_bytes = 0;  // as in Estimate, but that codes and scales are coded as in `fast_bytes`
  uint64_t codes = 0;
  uint64_t changed_codes = 0;
  uint64_t scales = 0;  // of tiles
  uint64_t changed_scales = 0;
  uint64_t matrix_scales = 0;  // of whole matrices
  uint64_t changed_matrix_scales = 0;
};

// The result. All fields except `mismatches` count only tensors that both checkpoints have.
struct Estimate {
  uint64_t tensors = 0;
  uint64_t changed_tensors = 0;
  uint64_t elements = 0;
  uint64_t changed = 0;
  uint64_t changed_integers = 0;  // part of `changed`; integers have no ulp and are not in `steps`

  uint64_t full_bytes = 0;
  uint64_t fast_bytes = 0;  // a whole object of profile fast
  uint64_t wan_bytes = 0;   // the same with profile wan
  std::optional<uint64_t> slime_bytes;

  std::vector<GroupEstimate> groups;  // by changed bytes, most first, then by name
  StepCounts steps = {};
  std::array<DensityBin, kDensityEnds.size() + 1> densities = {};
  std::vector<TensorMismatch> mismatches;
  std::vector<ViewEstimate> views;  // as asked for
};

struct EstimateOptions {
  bool slime = true;
  std::vector<std::string> views = {};  // names, as quantise::ParseView
};

// FAILED_PRECONDITION: they have no tensor in common. INVALID_ARGUMENT: there is no such view of
// them; the message names it, and the tensor that does not fit. Others: of the progress, and as
// CheckUnchanged for either checkpoint. The caller calls CheckSettled for both before opening them
// (settled.h).
Result<Estimate> EstimateSync(const Checkpoint& a, const Checkpoint& b,
                              const EstimateOptions& options, ThreadPool& pool,
                              const Progress& progress);

}  // namespace dws::checkpoint
