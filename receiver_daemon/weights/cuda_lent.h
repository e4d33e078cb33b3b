// Full tensors from GPU memory that a sender lends, to an engine's weights on one CUDA device: to
// their places, or to staging memory. Only lists cross PCIe; the kernels prove what has arrived.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda/device_weights.h"
#include "common/memory/cuda/staging_run.h"
#include "common/memory/staging_budget.h"
#include "common/model/layout.h"
#include "common/spool/device_target.h"
#include "receiver_daemon/weights/slice_places.h"

namespace dws {

// Slices of one trainer rank, and where the device has them.
struct LentSlices {
  cuda::DeviceWeights& weights;  // the caller holds its turn
  const SlicePlaces<cuda::Place>& places;
  const RankLayout& layout;
  TrainerRank rank;
  std::span<const LentSlice> slices;  // some may have no place here
};

// Writes the slices to all of their places here, and reads these back. Returns for each slice
// whether every place is as expected. Errors: DeviceTarget::Copy's.
Result<std::vector<uint8_t>> WriteLent(const LentSlices& lent);

struct StagedLent {
  cuda::StagedBlocks blocks;     // sealed: of the slices that are as expected
  std::vector<uint8_t> arrived;  // by slice: it is as expected, or has no place here
};
// Copies the slices to memory of their own, beside a running engine. Errors: as WriteLent; also
// RESOURCE_EXHAUSTED: `budget` has no room for them.
Result<StagedLent> StageLent(const LentSlices& lent, StagingBudget& budget);

}  // namespace dws
