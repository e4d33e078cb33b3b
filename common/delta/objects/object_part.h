// A part of a delta object: its head, and the frames of some slices, one after the other as the
// manifest names them (FORMAT.md, "Part of an object"). The part with all slices is the object.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/delta/objects/object_header.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// Rank slices, ascending; nullopt: all of the rank.
using SliceSelection = std::optional<std::vector<RankSlice>>;

// Returns whether the selection has the slice.
bool Selects(const SliceSelection& selection, RankSlice slice);

// Bytes of an object.
struct ObjectRange {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;

  friend bool operator==(const ObjectRange&, const ObjectRange&) = default;
};

// What the part has, in its order; neighbours are one range. `manifest` is the object's.
std::vector<ObjectRange> PartRanges(const ObjectHeader& header, const DeltaManifest& manifest,
                                    const SliceSelection& selection);

uint64_t SizeOf(const std::vector<ObjectRange>& ranges);

// The bytes [offset, offset + length) of what `ranges` are together, one after the other.
std::vector<ObjectRange> Within(const std::vector<ObjectRange>& ranges, uint64_t offset,
                                uint64_t length);

}  // namespace dws
