// Squash: several consecutive deltas as one, from the retained steps alone.
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "common/delta/encoder.h"
#include "common/delta/object.h"
#include "common/model/limits.h"
#include "sender_daemon/delta_log.h"

namespace dws {
namespace {

// The steps of one retained block. Retained objects hold relative modes only.
Status DecodeSteps(const RankLayout::SliceEntry& slice, uint32_t block,
                   const EncodedBlockView& view, DecodedBlock& decoded, BlockChanges& changes) {
  DWS_RETURN_IF_ERROR(
      DecodeBlock(slice.dtype, BlockElements(slice.elements, block), view, decoded));
  DWS_CHECK(decoded.kind == DecodedBlock::Kind::kSteps);
  changes.positions.swap(decoded.positions);
  changes.steps.swap(decoded.values);
  return OkStatus();
}

// The composed blocks of one slice; empty when no version of the chain touched it.
Result<std::vector<EncodedBlock>> SquashSlice(const RankLayout::SliceEntry& slice, RankSlice number,
                                              const std::vector<RetainedVersionPtr>& chain) {
  std::vector<std::vector<EncodedBlockView>> views(chain.size());
  bool touched = false;
  for (size_t v = 0; v < chain.size(); ++v) {
    views[v].resize(slice.blocks);
    DWS_RETURN_IF_ERROR(chain[v]->FindBlocks(number, 0, views[v]));
    for (const EncodedBlockView& view : views[v]) touched |= view.mode != BlockMode::kEmpty;
  }
  std::vector<EncodedBlock> blocks;
  if (!touched) return blocks;
  blocks.resize(slice.blocks);
  DecodedBlock decoded;
  BlockChanges changes;
  const auto scratch = std::make_unique<EncodeScratch>();
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    BlockChanges sum;
    for (const auto& version : views) {
      if (version[b].mode == BlockMode::kEmpty) continue;
      DWS_RETURN_IF_ERROR(DecodeSteps(slice, b, version[b], decoded, changes));
      sum = ComposeSteps(slice.dtype, sum, changes);
    }
    if (sum.size() > 0) {
      blocks[b] = EncodeSteps(slice.dtype, sum, BlockElements(slice.elements, b), *scratch);
    }
  }
  return blocks;
}

// The digests of all slices before the first version of the chain.
std::vector<Digest> DigestsBefore(const std::vector<RetainedVersionPtr>& chain) {
  std::vector<Digest> before = chain.front()->after;
  for (const SliceDelta& slice : chain.front()->manifest.slices)
    before[slice.slice.value()] = slice.before;
  return before;
}

}  // namespace

Result<std::vector<std::byte>> Squash(const RankLayout& layout,
                                      const std::vector<RetainedVersionPtr>& chain) {
  DWS_CHECK(!chain.empty() && chain.front()->base.has_value());
  const std::vector<Digest> before = DigestsBefore(chain);
  const std::vector<Digest>& after = chain.back()->after;
  std::vector<std::vector<EncodedBlock>> blocks(layout.slice_count());
  std::vector<SliceBlocks> slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankSlice number(s);
    DWS_ASSIGN_OR_RETURN(blocks[s], SquashSlice(layout.slice(number), number, chain));
    if (blocks[s].empty()) continue;
    slices.push_back(
        {.slice = number, .before = before[s], .after = after[s], .blocks = blocks[s]});
  }
  DeltaManifest identity = chain.back()->manifest;
  identity.base_version = *chain.front()->base;
  return BuildObject(std::move(identity), slices);
}

}  // namespace dws
