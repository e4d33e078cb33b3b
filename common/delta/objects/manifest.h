// Converts the manifest of a delta object to bytes and back: dws.v1.DeltaManifest of
// proto/delta.proto. The only part of the codec that uses protobuf.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// Fields are in ascending order, repeated ones in the order of the manifest, so the same manifest
// gives the same bytes.
std::vector<std::byte> SerializeManifest(const DeltaManifest& manifest);

// DATA_LOSS: the bytes are not a manifest, have fields that a manifest does not have, or have more
// slices or frames than `layout` allows (than any layout, if it is null); nothing is allocated for
// those. CheckManifest checks the rest of the contents.
Result<DeltaManifest> DeserializeManifest(ByteSpan bytes, const RankLayout* layout = nullptr);

// An upper bound of the bytes of a manifest of this layout.
uint64_t ManifestBytesMax(const RankLayout& layout);

// Checks that the manifest fits `layout` and that its frames fill a section of `frames_bytes`, one
// after the other. DATA_LOSS: it does not; the message names the slice. FAILED_PRECONDITION: it was
// made for another layout.
Status CheckManifest(const DeltaManifest& manifest, const RankLayout& layout,
                     uint64_t frames_bytes);
// Makes those checks of CheckManifest that are possible without the layout.
Status CheckManifestAlone(const DeltaManifest& manifest, uint64_t frames_bytes);

}  // namespace dws
