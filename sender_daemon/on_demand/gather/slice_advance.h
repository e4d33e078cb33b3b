// Leads slices in memory from one version to a later one, by a delta of their owner.
#pragma once

#include <span>
#include <vector>

#include "common/model/layout.h"
#include "common/sources/source_chain.h"
#include "common/spool/placed_memory.h"

namespace dws {

// Lifecycle: for one delta; what it refers to outlives it. Threads: one at a time. After an error
// the slices have neither version.
class SliceAdvance final : public DeltaTaker {
 public:
  // `slices`: ascending; `placed` has each in one run, as the delta's base version has it.
  SliceAdvance(const RankLayout& layout, std::span<const RankSlice> slices,
               const PlacedMemory& placed)
      : layout_(layout), slices_(slices), placed_(placed) {}

  // DATA_LOSS: a frame is damaged. Errors of the spool, too.
  Status Take(std::span<const SpooledFrame> frames, const Spool& spool) override;
  // It keeps no record: what is read again would be added twice.
  bool Has(RankSlice /*slice*/, const FrameEntry& /*entry*/) const override { return false; }

  // DATA_LOSS: the slices are not as `expected`, by rank slice, says.
  Status Check(std::span<const Digest> expected) const;

 private:
  MutableByteSpan BytesOf(size_t index) const;
  Status TakeFrame(const SpooledFrame& frame, ByteSpan bytes, MutableByteSpan slice);

  const RankLayout& layout_;
  const std::span<const RankSlice> slices_;
  const PlacedMemory& placed_;
  DecodedBlock decoded_;
};

}  // namespace dws
