#include "common/delta/squash.h"

#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "common/delta/objects/object_writer.h"
#include "common/model/limits.h"

namespace dws {
namespace {

Status DecodeSteps(const RankLayout::SliceEntry& slice, uint32_t block,
                   const EncodedBlockView& view, DecodedBlock& decoded, BlockChanges& changes) {
  DWS_RETURN_IF_ERROR(
      DecodeBlock(slice.dtype, BlockElements(slice.elements, block), view, decoded));
  if (decoded.kind != DecodedBlock::Kind::kSteps) {
    return DataLossError("a {} block cannot be composed with others", ToString(view.mode));
  }
  changes.positions.swap(decoded.positions);
  changes.steps.swap(decoded.values);
  return OkStatus();
}

// The composed blocks of one slice; empty when no delta of the chain touches it.
Result<std::vector<EncodedBlock>> SquashSlice(const RankLayout::SliceEntry& slice, RankSlice number,
                                              std::span<const DeltaLink> chain) {
  std::vector<LinkBlocks> found(chain.size());
  bool touched = false;
  for (size_t v = 0; v < chain.size(); ++v) {
    DWS_RETURN_IF_ERROR(FindBlocks(chain[v], number, 0, slice.blocks, found[v]));
    DWS_CHECK(found[v].views.size() == slice.blocks);
    for (const EncodedBlockView& view : found[v].views) touched |= view.mode != BlockMode::kEmpty;
  }
  std::vector<EncodedBlock> blocks;
  if (!touched) return blocks;
  blocks.resize(slice.blocks);
  DecodedBlock decoded;
  BlockChanges changes;
  const auto scratch = std::make_unique<EncodeScratch>();
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    BlockChanges sum;
    for (const LinkBlocks& version : found) {
      if (version.views[b].mode == BlockMode::kEmpty) continue;
      DWS_RETURN_IF_ERROR(DecodeSteps(slice, b, version.views[b], decoded, changes));
      sum = ComposeSteps(slice.dtype, sum, changes);
    }
    if (sum.size() > 0) {
      blocks[b] = EncodeSteps(slice.dtype, sum, BlockElements(slice.elements, b), *scratch);
    }
  }
  return blocks;
}

// The digests of one slice before the first delta that touches it and after the last.
struct Ends {
  std::optional<Digest> before;
  Digest after;
};

Result<std::vector<Ends>> SliceEnds(const RankLayout& layout, std::span<const DeltaLink> chain) {
  std::vector<Ends> ends(layout.slice_count());
  for (const DeltaLink& link : chain) {
    for (const SliceDelta& slice : link.manifest->slices) {
      Ends& end = ends[slice.slice.value()];
      if (end.before.has_value() && end.after != slice.before) {
        return DataLossError(
            "tensor '{}': the delta from version {} to {} expects other weights than the deltas "
            "before it produce",
            layout.tensor(slice.slice).name, link.manifest->base_version.value(),
            link.manifest->version.value());
      }
      if (!end.before.has_value()) end.before = slice.before;
      end.after = slice.after;
    }
  }
  return ends;
}

}  // namespace

Result<std::vector<std::byte>> Squash(const RankLayout& layout, std::span<const DeltaLink> chain) {
  DWS_CHECK(!chain.empty());
  for (size_t i = 1; i < chain.size(); ++i) {
    DWS_CHECK(chain[i].manifest->base_version == chain[i - 1].manifest->version);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<Ends> ends, SliceEnds(layout, chain));
  ObjectWriter writer;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankSlice number(s);
    if (!ends[s].before.has_value()) continue;
    DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlock> blocks,
                         SquashSlice(layout.slice(number), number, chain));
    DWS_RETURN_IF_ERROR(writer.AddSlice(
        {.slice = number, .before = *ends[s].before, .after = ends[s].after}, blocks));
  }
  DeltaManifest identity = *chain.back().manifest;
  identity.base_version = chain.front().manifest->base_version;
  return writer.Finish(std::move(identity));
}

}  // namespace dws
