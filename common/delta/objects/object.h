// Delta objects: header, manifest, frames (FORMAT.md, "Object"). Built by a sender
// (object_writer.h), parsed by a receiver.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/objects/object_header.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// Builds header and manifest of an object whose frames section has `frames_bytes`. `manifest` is
// complete.
std::vector<std::byte> BuildObjectHead(const DeltaManifest& manifest, uint64_t frames_bytes);

// Returns the uncompressed bytes of a manifest. `stored` are its stored bytes, with the sizes of
// `header`. DATA_LOSS: they cannot be decompressed. Does not check the checksum.
Result<std::vector<std::byte>> UnpackManifest(ByteSpan stored, const ObjectHeader& header);

// Parses header and manifest from the first bytes of an object (at least header + manifest) and
// checks the manifest against `layout`: signature, slice numbers, frames inside the object, block
// ranges inside their slices, ascending and not overlapping. Frames are checked when they are read
// (ParseFrame). DATA_LOSS: damaged. UNIMPLEMENTED: as ParseObjectHeader. FAILED_PRECONDITION: made
// for another layout.
Result<DeltaManifest> ParseObjectManifest(ByteSpan head, const RankLayout& layout);

// Returns the bytes of one frame of an object that ParseObjectManifest accepted. If the object is
// cut off, returns only the bytes that are there: ParseFrame refuses them.
ByteSpan FrameBytes(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry);

}  // namespace dws
