// Delta objects: header, manifest, frames (FORMAT.md, "Object"). Built by a sender, parsed by a
// receiver.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/object_header.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// One slice of an object to build: its encoded blocks from block 0 on, empty ones included.
struct SliceBlocks {
  RankSlice slice;
  Digest before;
  Digest after;
  std::span<const EncodedBlock> blocks;  // slice.blocks of them
  // The table of the class-split blocks; ignored when there are none.
  std::optional<ClassTable> classes;
};

// The bytes of an object. `identity` is its manifest without slices. BuildObject adds those of
// `slices` (ascending) that have a block that is not empty.
std::vector<std::byte> BuildObject(DeltaManifest identity, std::span<const SliceBlocks> slices);

// Only header and manifest of an object whose frames section has `frames_bytes`, for callers that
// write frames out as they build them. `manifest` is complete.
std::vector<std::byte> BuildObjectHead(const DeltaManifest& manifest, uint64_t frames_bytes);

// The uncompressed bytes of a manifest. `stored` are its stored bytes, with the sizes of `header`.
// DATA_LOSS: they cannot be decompressed. Does not check the checksum.
Result<std::vector<std::byte>> UnpackManifest(ByteSpan stored, const ObjectHeader& header);

// Parses header and manifest from the first bytes of an object (at least header + manifest) and
// checks the manifest against `layout`: signature, slice numbers, frames inside the object, block
// ranges inside their slices, ascending and not overlapping. Frames are checked when they are read
// (ParseFrame). DATA_LOSS: damaged. UNIMPLEMENTED: as ParseObjectHeader. FAILED_PRECONDITION: made
// for another layout.
Result<DeltaManifest> ParseObjectManifest(ByteSpan head, const RankLayout& layout);

// The bytes of one frame of an object that ParseObjectManifest accepted. If the object is cut off,
// only the bytes that it has: ParseFrame refuses them.
ByteSpan FrameBytes(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry);

}  // namespace dws
