// With the old weights, all threads take some blocks of a slice at a time through all versions and
// compare the result with the old block.
#include "common/delta/squash.h"

#include <algorithm>
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

// Blocks that are composed over the old weights at a time: 8 MiB of BF16.
constexpr uint32_t kBlocksAtOnce = 64;

// All encoded blocks of one slice, by delta.
Result<std::vector<LinkBlocks>> BlocksOf(const RankLayout::SliceEntry& slice, RankSlice number,
                                         std::span<const DeltaLink> chain) {
  std::vector<LinkBlocks> found(chain.size());
  for (size_t v = 0; v < chain.size(); ++v) {
    DWS_RETURN_IF_ERROR(FindBlocks(chain[v], number, 0, slice.blocks, found[v]));
    DWS_CHECK(found[v].views.size() == slice.blocks);
  }
  return found;
}

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

// Returns the composed blocks of one slice; empty if no delta of the chain changes it.
Result<std::vector<EncodedBlock>> SquashSlice(const RankLayout::SliceEntry& slice, RankSlice number,
                                              std::span<const DeltaLink> chain) {
  DWS_ASSIGN_OR_RETURN(const std::vector<LinkBlocks> found, BlocksOf(slice, number, chain));
  std::vector<EncodedBlock> blocks(slice.blocks);
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

// Composes blocks of one slice over their old bytes. Threads: Compose from several, each with its
// own scratch.
class BlocksOver {
 public:
  struct Scratch {
    std::vector<std::byte> after;
    DecodedBlock decoded;
    BlockDiffer differ;
    BlockChanges changes;
    EncodeScratch encode;
  };

  // `found`: BlocksOf.
  BlocksOver(const RankLayout::SliceEntry& slice, RankSlice number,
             std::span<const DeltaLink> chain, const std::vector<LinkBlocks>& found)
      : slice_(slice), number_(number), found_(found) {
    for (const DeltaLink& link : chain) classes_.push_back(ClassesOf(link, number));
  }

  const RankLayout::SliceEntry& slice() const { return slice_; }
  RankSlice number() const { return number_; }

  // Returns whether any delta changes the block.
  bool Touches(uint32_t block) const {
    return std::ranges::any_of(found_, [block](const LinkBlocks& version) {
      return version.views[block].mode != BlockMode::kEmpty;
    });
  }

  Status Compose(uint32_t block, ByteSpan before, Scratch& scratch, EncodedBlock& composed) const {
    scratch.after.assign(before.begin(), before.end());
    for (size_t v = 0; v < found_.size(); ++v) {
      const EncodedBlockView& view = found_[v].views[block];
      if (view.mode == BlockMode::kEmpty) continue;
      DWS_RETURN_IF_ERROR(
          AdvanceBlock(slice_.dtype, view, classes_[v], scratch.after, scratch.decoded));
    }
    scratch.differ.Diff(slice_.dtype, before, scratch.after, slice_.BlockFirstWord(block),
                        scratch.changes);
    if (scratch.changes.size() > 0) {
      composed = EncodeSteps(slice_.dtype, scratch.changes, BlockElements(slice_.elements, block),
                             scratch.encode);
    }
    return OkStatus();
  }

 private:
  const RankLayout::SliceEntry& slice_;
  const RankSlice number_;
  const std::vector<LinkBlocks>& found_;
  std::vector<const ClassTable*> classes_;  // by delta
};

// Composes slices with the help of the old weights. Threads: one.
class SlicesOver {
 public:
  SlicesOver(const OldWeights& old, uint64_t bytes_max, ThreadPool& pool)
      : old_(old), bytes_max_(bytes_max), pool_(pool), scratch_(pool.worker_count()) {}

  // Adds the slice to `writer`.
  Status Compose(const RankLayout& layout, const SliceEnd& end, std::span<const DeltaLink> chain,
                 ObjectWriter& writer) {
    if (!old_.Has(end.slice, end.before)) return writer.NameSlice(end);
    const RankLayout::SliceEntry& slice = layout.slice(end.slice);
    DWS_ASSIGN_OR_RETURN(const std::vector<LinkBlocks> found, BlocksOf(slice, end.slice, chain));
    const BlocksOver over(slice, end.slice, chain, found);
    std::vector<EncodedBlock> blocks(slice.blocks);
    uint64_t bytes = writer.frames_bytes();
    for (uint32_t first = 0; first < slice.blocks; first += kBlocksAtOnce) {
      const auto some =
          std::span(blocks).subspan(first, std::min(kBlocksAtOnce, slice.blocks - first));
      const Status composed = ComposeSome(over, first, some);
      // Frames have checksums: their blocks were encoded over other bytes than the memory has,
      // which has changed since its digest was taken.
      if (absl::IsDataLoss(composed)) return writer.NameSlice(end);
      DWS_RETURN_IF_ERROR(composed);
      for (const EncodedBlock& block : some) bytes += block.payload.size();
      if (bytes > bytes_max_) return TooLarge(chain);
    }
    DWS_RETURN_IF_ERROR(writer.AddSlice(end, blocks));
    return writer.frames_bytes() <= bytes_max_ ? OkStatus() : TooLarge(chain);
  }

 private:
  Status TooLarge(std::span<const DeltaLink> chain) const {
    return ResourceExhaustedError("{} deltas, versions {} to {}, compose to more than {} bytes",
                                  chain.size(), chain.front().manifest->version.value(),
                                  chain.back().manifest->version.value(), bytes_max_);
  }

  // Composes `blocks`, from block `first` on. DATA_LOSS: one does not decode.
  Status ComposeSome(const BlocksOver& over, uint32_t first, std::span<EncodedBlock> blocks) {
    const RankLayout::SliceEntry& slice = over.slice();
    std::vector<uint32_t> touched;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      if (over.Touches(first + i)) touched.push_back(i);
    }
    if (touched.empty()) return OkStatus();
    const uint64_t block_bytes = limits::kBlockElements * ElementBytes(slice.dtype);
    before_.resize(std::min(blocks.size() * block_bytes, slice.size_bytes() - first * block_bytes));
    DWS_RETURN_IF_ERROR(old_.Read(over.number(), first, before_));
    std::vector<Status> statuses(touched.size());
    pool_.ParallelFor(touched.size(), [&](size_t index, size_t worker) {
      const uint32_t i = touched[index];
      const ByteSpan rest = ByteSpan(before_).subspan(i * block_bytes);
      statuses[index] = over.Compose(first + i, rest.first(std::min(rest.size(), block_bytes)),
                                     scratch_[worker], blocks[i]);
    });
    for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
    return OkStatus();
  }

  const OldWeights& old_;
  const uint64_t bytes_max_;
  ThreadPool& pool_;
  std::vector<BlocksOver::Scratch> scratch_;  // by worker
  std::vector<std::byte> before_;
};

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

// The object of the chain: `add` adds each slice that it touches to the writer.
template <typename Add>
Result<std::vector<std::byte>> ComposeObject(const RankLayout& layout,
                                             std::span<const DeltaLink> chain, const Add& add) {
  DWS_CHECK(!chain.empty());
  for (size_t i = 1; i < chain.size(); ++i) {
    DWS_CHECK(chain[i].manifest->base_version == chain[i - 1].manifest->version);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<Ends> ends, SliceEnds(layout, chain));
  ObjectWriter writer;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    if (!ends[s].before.has_value()) continue;
    const SliceEnd end{
        .slice = RankSlice(s), .before = *ends[s].before, .after = ends[s].after, .classes = {}};
    DWS_RETURN_IF_ERROR(add(end, writer));
  }
  DeltaManifest identity = *chain.back().manifest;
  identity.base_version = chain.front().manifest->base_version;
  return writer.Finish(std::move(identity));
}

}  // namespace

Result<std::vector<std::byte>> Squash(const RankLayout& layout, std::span<const DeltaLink> chain) {
  return ComposeObject(layout, chain, [&](const SliceEnd& end, ObjectWriter& writer) -> Status {
    DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlock> blocks,
                         SquashSlice(layout.slice(end.slice), end.slice, chain));
    return writer.AddSlice(end, blocks);
  });
}

Result<std::vector<std::byte>> SquashOver(const RankLayout& layout,
                                          std::span<const DeltaLink> chain, const OldWeights& old,
                                          uint64_t bytes_max, ThreadPool& pool) {
  SlicesOver over(old, bytes_max, pool);
  return ComposeObject(layout, chain, [&](const SliceEnd& end, ObjectWriter& writer) {
    return over.Compose(layout, end, chain, writer);
  });
}

}  // namespace dws
