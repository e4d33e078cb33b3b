// Delta objects: header, manifest, frames (FORMAT.md, "Object"). Built by a sender, parsed by a
// receiver.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/block.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// What one slice contributes to an object: its encoded blocks from block 0 on, empty ones included.
struct SliceBlocks {
  RankSlice slice;
  Digest before;
  Digest after;
  std::span<const EncodedBlock> blocks;  // slice.blocks of them
};

// The bytes of an object. `identity` is its manifest without slices, which BuildObject fills in:
// those of `slices` (ascending) that have a block that is not empty.
std::vector<std::byte> BuildObject(DeltaManifest identity, std::span<const SliceBlocks> slices);

// The fixed-size header in front: tells how much to read next.
struct ObjectHeader {
  uint64_t manifest_bytes = 0;  // as stored (compressed)
  uint64_t frames_bytes = 0;
  uint64_t manifest_raw_bytes = 0;  // before compression
  uint64_t manifest_checksum = 0;   // of the stored bytes
  bool manifest_compressed = false;
  uint64_t total_bytes() const;
};
inline constexpr size_t kObjectHeaderBytes = 64;

// DATA_LOSS: damaged or truncated; UNIMPLEMENTED: a format version this build does not know.
Result<ObjectHeader> ParseObjectHeader(ByteSpan bytes);

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
