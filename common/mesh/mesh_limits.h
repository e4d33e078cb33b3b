// The maxima of meshes and of the plans between them, in addition to common/model/limits.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws::limits {

inline constexpr size_t kBoxDimsMax = 4;  // of a tensor that a mesh cuts
inline constexpr size_t kMeshAxesMax = 8;
inline constexpr size_t kHeldBoxesMax = 65'536;  // of one tensor, on all ranks
inline constexpr size_t kPiecesMax = 65'536;     // of one tensor of a layout
// Blocks of one piece: at least the rows of the largest tensor that is interleaved row by row.
inline constexpr uint64_t kPieceBlocksMax = 262'144;
// What planning holds of one canonical tensor: fragments on one side, shares, and senders of
// shares.
inline constexpr size_t kPartsMax = 262'144;
inline constexpr size_t kHoldersMax = 1'048'576;
inline constexpr size_t kLayoutHoldingsMax =
    4'194'304;  // boxes and ranks of all holdings of a layout
inline constexpr size_t kMeshTensorsMax = 200'000;
inline constexpr size_t kPlanRegionsMax = 16'000'000;
inline constexpr uint64_t kRegionRunsMax = 64;  // above, the region is staged as a whole
// A tensor is divided into shares of at least so many bytes: smaller ones are more regions for the
// same balance.
inline constexpr uint64_t kShareBytesMin = uint64_t{256} << 10;

}  // namespace dws::limits
