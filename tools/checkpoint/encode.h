// Compares the two states of a model and encodes what changed, block by block: the one path from
// which `estimate` has its figures and `pack` its object. What a sender does at capture
// (sender_daemon/capture/capture.h), without a snapshot.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest.h"
#include "common/model/layout.h"
#include "tools/checkpoint/block_source.h"
#include "tools/checkpoint/block_walk.h"
#include "tools/checkpoint/object_writer.h"

namespace dws::checkpoint {

enum class Encoding : uint8_t {
  kFast,      // the profiles of model/delta_profile.h
  kWan,       //
  kDirect,    //
  kAbsolute,  // values as they are: may be applied again and again, over anything
};

// Changed floats by the size of their step, in units in the last place: 1, 2, 3-4, 5-8, ..., up to
// 2^(kStepBins - 2), more.
inline constexpr size_t kStepBins = 9;
using StepCounts = std::array<uint64_t, kStepBins>;
inline constexpr uint64_t StepBinEnd(size_t bin) {
  return uint64_t{1} << bin;
}  // of all but the last

// What became of one slice.
struct SliceChange {
  Digest before;
  Digest after;
  uint64_t nnz = 0;
  StepCounts steps = {};  // of floats; zeros for integers
};

// One encoding of the difference. `writer` gets every slice that has blocks, in order, and is not
// finished.
struct EncodeTarget {
  Encoding encoding = Encoding::kFast;
  ObjectWriter* writer = nullptr;
};

// By rank slice. Class tables (kWan) are learnt from a sample of the very blocks they are used for:
// a sender, which learns from the version before, is about 1 % larger. `step` names the work to the
// progress. Errors: of source, writers and progress.
Result<std::vector<SliceChange>> EncodeDifference(const Walk& walk, std::string_view step,
                                                  BlockSource& source,
                                                  std::span<const EncodeTarget> targets);

// The digests before or after of all slices, as StateToken takes them.
std::vector<Digest> DigestsAfter(std::span<const SliceChange> changes);

}  // namespace dws::checkpoint
