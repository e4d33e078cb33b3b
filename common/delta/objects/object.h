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

// What one slice contributes to an object: its encoded blocks from block 0 on, empty ones included.
struct SliceBlocks {
  RankSlice slice;
  Digest before;
  Digest after;
  std::span<const EncodedBlock> blocks;  // slice.blocks of them
  // Of the class-split ones among them; ignored when there are none.
  std::optional<ClassTable> classes;
};

// The bytes of an object. `identity` is its manifest without slices, which BuildObject fills in:
// those of `slices` (ascending) that have a block that is not empty.
std::vector<std::byte> BuildObject(DeltaManifest identity, std::span<const SliceBlocks> slices);

// Header and manifest alone, of an object whose frames section has `frames_bytes`: for whoever
// writes frames out as they are built. `manifest` is complete.
std::vector<std::byte> BuildObjectHead(const DeltaManifest& manifest, uint64_t frames_bytes);

// The bytes of a manifest before compression, from those stored, which `header` has accepted.
// DATA_LOSS: they cannot be decompressed. Checks no checksum.
Result<std::vector<std::byte>> UnpackManifest(ByteSpan stored, const ObjectHeader& header);

// Parses header and manifest from the first bytes of an object (at least header + manifest) and
// checks the manifest against `layout`: signature, slice numbers, frame tables inside the object,
// block ranges inside their slices, ascending and not overlapping. Frames are checked when they are
// read (ParseFrame). DATA_LOSS: damaged; UNIMPLEMENTED: as ParseObjectHeader; FAILED_PRECONDITION:
// made for another layout.
Result<DeltaManifest> ParseObjectManifest(ByteSpan head, const RankLayout& layout);

// The bytes of one frame of a whole object that ParseObjectManifest accepted. Of an object that is
// cut off, the bytes that are there: ParseFrame refuses them.
ByteSpan FrameBytes(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry);

}  // namespace dws
