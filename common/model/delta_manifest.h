// The manifest of a delta object as values; common/delta/objects/manifest converts it to and from
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/class_table.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// The place of one frame in the frames section, and the consecutive blocks of its slice that it
// holds.
struct FrameEntry {
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t checksum = 0;  // XXH3-64 of the frame's bytes

  friend bool operator==(const FrameEntry&, const FrameEntry&) = default;
};

// The changes of one slice. Blocks that no frame covers are unchanged.
struct SliceDelta {
  RankSlice slice;
  uint64_t nnz = 0;
  Digest before;
  Digest after;
  std::vector<FrameEntry> frames;     // ascending, not overlapping
  std::optional<ClassTable> classes;  // of its class-split blocks; absent when there are none

  friend bool operator==(const SliceDelta&, const SliceDelta&) = default;
};

// What a delta object says of itself: its versions, digests and frames.
struct DeltaManifest {
  StreamId stream;
  TrainerRank trainer_rank;
  WeightVersion version;
  WeightVersion base_version;
  Digest layout_signature;
  std::vector<SliceDelta> slices;  // touched ones, ascending
  Digest state_token;              // of the rank at `version`

  friend bool operator==(const DeltaManifest&, const DeltaManifest&) = default;
};

}  // namespace dws
