// The frames change the memory as they come; only the digests at the end prove what it has become.
#include "sender_daemon/on_demand/gather/slice_advance.h"

#include <algorithm>

#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"

namespace dws {

MutableByteSpan SliceAdvance::BytesOf(size_t index) const {
  return placed_.memory.subspan(placed_.places[index].first_byte,
                                layout_.slice(slices_[index]).size_bytes());
}

Status SliceAdvance::Take(std::span<const SpooledFrame> frames, const Spool& spool) {
  std::vector<std::byte> buffer;
  for (const SpooledFrame& frame : frames) {
    const auto found = std::ranges::lower_bound(slices_, frame.slice);
    if (found == slices_.end() || *found != frame.slice) continue;  // a part has no others
    DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                         spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
    const auto index = static_cast<size_t>(found - slices_.begin());
    DWS_RETURN_IF_ERROR(TakeFrame(frame, bytes, BytesOf(index)));
  }
  return OkStatus();
}

Status SliceAdvance::TakeFrame(const SpooledFrame& frame, ByteSpan bytes, MutableByteSpan slice) {
  const DType dtype = layout_.slice(frame.slice).dtype;
  const uint64_t block_bytes = limits::kBlockElements * ElementBytes(dtype);
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks, ParseFrame(bytes, frame.entry));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint64_t first = (frame.entry.first_block + i) * block_bytes;
    DWS_RETURN_IF_ERROR(
        AdvanceBlock(dtype, blocks[i], frame.classes.has_value() ? &*frame.classes : nullptr,
                     slice.subspan(first, std::min(block_bytes, slice.size() - first)), decoded_));
  }
  return OkStatus();
}

Status SliceAdvance::Check(std::span<const Digest> expected) const {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const RankSlice slice = slices_[i];
    if (DigestBytes(BytesOf(i), layout_.slice(slice).first_word) == expected[slice.value()]) {
      continue;
    }
    return DataLossError("slice {} of tensor '{}' is not as published", slice.value(),
                         layout_.tensor(slice).name);
  }
  return OkStatus();
}

}  // namespace dws
