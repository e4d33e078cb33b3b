// Applies a delta object to weights, frame by frame: a minimal receiver.
#pragma once

#include <vector>

#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/object.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

inline void ApplyFrame(const RankLayout& layout, RankSlice number, ByteSpan bytes,
                       const FrameEntry& entry, Weights& weights,
                       const std::optional<ClassTable>& classes = std::nullopt) {
  const RankLayout::SliceEntry& slice = layout.slice(number);
  const size_t element_bytes = ElementBytes(slice.dtype);
  auto blocks = ParseFrame(bytes, entry);
  DWS_CHECK(blocks.ok());
  DecodedBlock decoded;
  for (uint32_t i = 0; i < entry.block_count; ++i) {
    const uint32_t block = entry.first_block + i;
    const uint32_t elements = BlockElements(slice.elements, block);
    const MutableByteSpan bytes_of_block =
        MutableByteSpan(weights[number.value()])
            .subspan(size_t{block} * limits::kBlockElements * element_bytes,
                     elements * element_bytes);
    DWS_CHECK(DecodeBlock(
                  slice.dtype, elements, (*blocks)[i], decoded,
                  {.classes = classes.has_value() ? &*classes : nullptr, .before = bytes_of_block})
                  .ok());
    ApplyBlock(slice.dtype, decoded, bytes_of_block);
  }
}

inline void ApplyObject(const RankLayout& layout, ByteSpan object, Weights& weights) {
  auto header = ParseObjectHeader(object);
  auto manifest = ParseObjectManifest(object, layout);
  DWS_CHECK(header.ok() && manifest.ok());
  for (const SliceDelta& slice : manifest->slices) {
    for (const FrameEntry& entry : slice.frames) {
      ApplyFrame(layout, slice.slice, FrameBytes(object, *header, entry), entry, weights,
                 slice.classes);
    }
  }
}

}  // namespace dws
