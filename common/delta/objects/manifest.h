// The manifest of a delta object to bytes and back: dws.v1.DeltaManifest of proto/delta.proto. The
// one place of the codec that knows protobuf.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"

namespace dws {

// Fields in ascending order, repeated ones in the order of the manifest: the same manifest, the
// same bytes.
std::vector<std::byte> SerializeManifest(const DeltaManifest& manifest);

// DATA_LOSS: no manifest, fields that a manifest does not have, or more slices or frames than
// `layout` (any, when it is null) can have; nothing is allocated for those. Says nothing else about
// its contents: CheckManifest does.
Result<DeltaManifest> DeserializeManifest(ByteSpan bytes, const RankLayout* layout = nullptr);

// No manifest of an object of this layout has more bytes.
uint64_t ManifestBytesMax(const RankLayout& layout);

// Whether the manifest fits `layout` and its frames fill a section of `frames_bytes`, one after the
// other. DATA_LOSS: it does not, the message names the slice; FAILED_PRECONDITION: made for another
// layout.
Status CheckManifest(const DeltaManifest& manifest, const RankLayout& layout,
                     uint64_t frames_bytes);
// The same as far as it goes without the layout.
Status CheckManifestAlone(const DeltaManifest& manifest, uint64_t frames_bytes);

}  // namespace dws
