// Compares the two states of a model and encodes the changes, block by block. Both `estimate` and
// `pack` use it, so their sizes agree. It does what a sender does at capture
// (sender_daemon/capture/capture.h), without a snapshot.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/object_writer.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "tools/checkpoint/parts/block_source.h"
#include "tools/checkpoint/parts/block_walk.h"

namespace dws::checkpoint {

enum class Encoding : uint8_t {
  kFast,    // the profiles of model/delta_profile.h
  kWan,     //
  kDirect,  //
};

// Bins for changed floats by the size of their step, in units in the last place: 1, 2, 3-4, 5-8,
// ..., up to 2^(kStepBins - 2), and larger.
inline constexpr size_t kStepBins = 9;
using StepCounts = std::array<uint64_t, kStepBins>;
inline constexpr uint64_t StepBinEnd(size_t bin) {
  return uint64_t{1} << bin;
}  // for all bins except the last

// The changes of one slice.
struct SliceChange {
  Digest before;
  Digest after;
  uint64_t nnz = 0;
  StepCounts steps = {};  // for floats; zeros for integers
};

// One encoding of the difference. `writer` gets every slice that has blocks, in order; the caller
// calls its Finish.
struct EncodeTarget {
  Encoding encoding = Encoding::kFast;
  ObjectWriter* writer = nullptr;
};

// Returns the changes by rank slice. Class tables (kWan) are learnt from a sample of the same
// blocks that they encode. A sender learns them from the version before, and its objects are about
// 1 % larger. `step` is the name of the work for the progress. Errors: of source, writers and
// progress.
Result<std::vector<SliceChange>> EncodeDifference(const Walk& walk, std::string_view step,
                                                  BlockSource& source,
                                                  std::span<const EncodeTarget> targets);

// The digests of all slices after the change, as StateToken takes them.
std::vector<Digest> DigestsAfter(std::span<const SliceChange> changes);

}  // namespace dws::checkpoint
