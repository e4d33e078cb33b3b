#include "common/sources/turn_back.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/limits.h"
#include "common/spool/fetched_object.h"
#include "common/sync_state/receiver_plan.h"

namespace dws {
namespace {

// Reads frames of an object in a spool. Both must outlive it.
DeltaLink LinkTo(const FetchedObject& object, const Spool& spool) {
  // A part has its frames in other places than the object, in the same order.
  const auto frame = [&object, &spool](const FrameEntry& entry,
                                       std::vector<std::byte>& buffer) -> Result<ByteSpan> {
    const auto found =
        std::ranges::lower_bound(object.frames, entry.offset, {},
                                 [](const SpooledFrame& spooled) { return spooled.entry.offset; });
    DWS_CHECK(found != object.frames.end() && found->entry.offset == entry.offset);
    return spool.Read(found->spool_offset, entry.size_bytes, buffer);
  };
  return {.manifest = &object.manifest, .frame = frame};
}

// Exact: a step is a difference of ordinals, so subtracting it restores the bits before it.
Status UndoIn(LinkReader& delta, const RankLayout& layout, NewerBlock& newer,
              DecodedBlock& decoded) {
  const RankLayout::SliceEntry& slice = layout.slice(newer.block.slice);
  const uint32_t block = newer.block.first_block;
  DWS_ASSIGN_OR_RETURN(const EncodedBlockView view, delta.Find(newer.block.slice, block));
  if (view.mode == BlockMode::kEmpty) return OkStatus();
  DWS_RETURN_IF_ERROR(
      DecodeBlock(slice.dtype, BlockElements(slice.elements, block), view, decoded));
  if (decoded.kind == DecodedBlock::Kind::kNothing) return OkStatus();
  if (decoded.kind != DecodedBlock::Kind::kSteps) {
    return FailedPreconditionError("block {} of tensor '{}' has new values, which tell no old ones",
                                   block, layout.tensor(newer.block.slice).name);
  }
  UndoBlock(slice.dtype, decoded, newer.bytes);
  return OkStatus();
}

}  // namespace

std::vector<RankSlice> SlicesOf(std::span<const NewerBlock> blocks) {
  std::vector<RankSlice> slices;
  for (const NewerBlock& newer : blocks) slices.push_back(newer.block.slice);
  std::ranges::sort(slices);
  const auto repeated = std::ranges::unique(slices);
  slices.erase(repeated.begin(), repeated.end());
  return slices;
}

Status TurnBack(const RankLayout& layout, const Spool& object, const VersionAt& at,
                TrainerRank rank, WeightVersion wanted, std::span<NewerBlock> blocks) {
  DWS_ASSIGN_OR_RETURN(const FetchedObject parsed, ParseObject(object, layout, SlicesOf(blocks)));
  DWS_RETURN_IF_ERROR(CheckManifest(parsed.manifest, at, rank, wanted));
  LinkReader delta(LinkTo(parsed, object));
  DecodedBlock decoded;
  for (NewerBlock& newer : blocks) DWS_RETURN_IF_ERROR(UndoIn(delta, layout, newer, decoded));
  return OkStatus();
}

}  // namespace dws
