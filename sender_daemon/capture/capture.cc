#include "sender_daemon/capture/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "common/model/limits.h"

namespace dws {

namespace {

// What a worker takes at once. Large enough that the cost of claiming it, and of a cache line
// shared with the next worker's results, does not matter even when every block is a few bytes.
constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr size_t kBatchBlocks = 1024;
// Several batches per worker, so that the others do not wait long for a late one.
constexpr size_t kBatchesPerWorker = 8;

}  // namespace

// What one worker reuses from block to block.
struct alignas(128) Capture::Scratch {
  BlockDiffer differ;
  BlockChanges changes;
  EncodeScratch encode;
  std::vector<std::byte> gathered;  // a block that is not contiguous

  // The current bytes of a block. They may be the trainer's memory, so load each word only once.
  ByteSpan Current(const WeightSource& source, BlockRef ref, size_t size_bytes) {
    const ByteSpan view = source.View(ref, size_bytes);
    DWS_CHECK(view.empty() || view.size() == size_bytes);
    if (!view.empty()) return view;
    if (gathered.size() < size_bytes) gathered.resize(size_bytes);
    const MutableByteSpan block(gathered.data(), size_bytes);
    source.Read(ref, block);
    return block;
  }
};

Capture::Capture(Snapshot& snapshot, ThreadPool& pool, WeightVersion version, DeltaProfile profile)
    : snapshot_(snapshot),
      pool_(pool),
      version_(version),
      profile_(profile),
      blocks_(snapshot.layout().block_count()),
      block_differences_(snapshot.layout().block_count()),
      captured_(snapshot.layout().block_count()),
      scratch_(pool.worker_count()) {
  snapshot_.gate().BeginCapture();
  if (profile_ != DeltaProfile::kFast && snapshot_.version().has_value()) {
    other_blocks_.resize(blocks_.size());
  }
}

Capture::~Capture() {
  if (open_) Undo();
}

void Capture::CaptureBlock(BlockRef ref, const WeightSource& source, Scratch& scratch) {
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(ref.slice);
  const MutableByteSpan before = snapshot_.BlockBytes(ref.slice, ref.block);
  const uint64_t number = slice.first_block + ref.block;
  const uint64_t first_word = slice.BlockFirstWord(ref.block);
  if (!snapshot_.version().has_value()) {  // nothing to compare with
    const ByteSpan current = scratch.Current(source, ref, before.size());
    const StampedChange change = snapshot_.Change(ref.slice, ref.block, version_);
    std::memcpy(before.data(), current.data(), current.size());
    block_differences_[number] = DigestBytes(before, first_word);
    return;
  }
  const std::optional<DiffedBlock> diffed = source.Diffed(ref);
  if (diffed.has_value()) {
    block_differences_[number] = diffed->difference;
    StepsOf(slice.dtype, diffed->changes, scratch.changes);
  } else {
    block_differences_[number] =
        scratch.differ.Diff(slice.dtype, before, scratch.Current(source, ref, before.size()),
                            first_word, scratch.changes);
  }
  if (scratch.changes.size() == 0) return;
  Encode(ref, before, scratch);
  {
    const StampedChange change = snapshot_.Change(ref.slice, ref.block, version_);
    if (diffed.has_value()) {
      StoreListed(slice.dtype, diffed->changes, before);
    } else {
      scratch.differ.Update(before);
    }
  }
  if (profile_ == DeltaProfile::kDirect && blocks_[number].mode == BlockMode::kDenseUlp) {
    other_blocks_[number] = EncodeFullBlock(slice.dtype, before, false);
  }
}

// Encodes the changes in `scratch`. `before` still has the block's bytes before them.
void Capture::Encode(BlockRef ref, ByteSpan before, Scratch& scratch) {
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(ref.slice);
  const uint64_t number = slice.first_block + ref.block;
  const auto elements = static_cast<uint32_t>(before.size() / ElementBytes(slice.dtype));
  const ClassTable* const table = profile_ == DeltaProfile::kWan && !other_blocks_.empty()
                                      ? snapshot_.class_tables().Find(ref.slice)
                                      : nullptr;
  // Class-split needs positions, and stays smaller than dense steps up to a higher density.
  if (table == nullptr &&
      snapshot_.density_watch().EncodesDense(ref.slice, scratch.changes.size(), elements)) {
    blocks_[number] = EncodeDenseSteps(slice.dtype, scratch.changes, elements, scratch.encode);
    return;
  }
  blocks_[number] = EncodeSteps(slice.dtype, scratch.changes, elements, scratch.encode);
  if (table == nullptr) return;
  other_blocks_[number] = EncodeClassSplit(slice.dtype, scratch.changes, blocks_[number], before,
                                           *table, scratch.encode)
                              .value_or(EncodedBlock());
}

Status Capture::Claim(std::span<const BlockRef> refs) {
  const RankLayout& layout = snapshot_.layout();
  for (size_t i = 0; i < refs.size(); ++i) {
    DWS_CHECK(refs[i].slice.value() < layout.slice_count() &&
              refs[i].block < layout.slice(refs[i].slice).blocks);
    uint8_t& captured = captured_[layout.slice(refs[i].slice).first_block + refs[i].block];
    if (captured == 0) {
      captured = 1;
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      captured_[layout.slice(refs[j].slice).first_block + refs[j].block] = 0;
    }
    return InvalidArgumentError(
        "tensor '{}': block {} of slice {} was handed over twice in version {}",
        layout.tensor(refs[i].slice).name, refs[i].block, layout.slice(refs[i].slice).slice,
        version_.value());
  }
  return OkStatus();
}

std::vector<size_t> Capture::Batches(std::span<const BlockRef> refs) const {
  const RankLayout& layout = snapshot_.layout();
  const size_t blocks_max =
      std::clamp<size_t>(refs.size() / (pool_.worker_count() * kBatchesPerWorker), 1, kBatchBlocks);
  std::vector<size_t> ends;
  size_t begin = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < refs.size(); ++i) {
    const RankLayout::SliceEntry& slice = layout.slice(refs[i].slice);
    bytes += BlockElements(slice.elements, refs[i].block) * ElementBytes(slice.dtype);
    if (bytes < kBatchBytes && i + 1 - begin < blocks_max && i + 1 < refs.size()) continue;
    ends.push_back(i + 1);
    begin = i + 1;
    bytes = 0;
  }
  DWS_CHECK(begin == refs.size());
  return ends;
}

Status Capture::Blocks(std::span<const BlockRef> refs, WeightSource& source) {
  DWS_CHECK(open_ && !broken_);
  DWS_RETURN_IF_ERROR(Claim(refs));
  while (!refs.empty()) {
    const Result<FetchedBlocks> fetched = source.Fetch(refs, snapshot_, pool_);
    broken_ = !fetched.ok();
    DWS_RETURN_IF_ERROR(fetched.status());
    DWS_CHECK(fetched->count > 0 && fetched->count <= refs.size());
    DWS_CHECK(fetched->compared + fetched->copied <= fetched->count);
    CaptureReady(refs.first(fetched->count), source);
    compared_blocks_ += fetched->compared;
    copied_blocks_ += fetched->copied;
    refs = refs.subspan(fetched->count);
  }
  return OkStatus();
}

void Capture::CaptureReady(std::span<const BlockRef> refs, const WeightSource& source) {
  const std::vector<size_t> ends = Batches(refs);
  pool_.ParallelFor(ends.size(), [&](size_t batch, size_t worker) {
    for (size_t i = batch == 0 ? 0 : ends[batch - 1]; i < ends[batch]; ++i) {
      CaptureBlock(refs[i], source, scratch_[worker]);
    }
  });
}

// A digest that is only updated with changes stays wrong for ever once a bit has flipped. After all
// blocks of the slice were captured, its bytes are the trainer's again, so the digest is recomputed
// from them. Receivers find that the steps do not lead to the new digest, and fetch the slice in
// full.
void Capture::Mend(RankSlice slice, Digest& after) {
  if (!snapshot_.distrusts(slice)) return;
  const RankLayout::SliceEntry& entry = snapshot_.layout().slice(slice);
  const auto first = captured_.begin() + static_cast<ptrdiff_t>(entry.first_block);
  if (std::find(first, first + entry.blocks, 0) != first + entry.blocks) return;
  after = snapshot_.DigestBlocks(slice, 0, entry.blocks);
  snapshot_.Trust(slice);
}

Result<CapturedVersion> Capture::Finish() {
  DWS_CHECK(open_ && !broken_);
  const RankLayout& layout = snapshot_.layout();
  CapturedVersion result{
      .version = version_, .base = snapshot_.version(), .before = snapshot_.digests()};
  result.compared_blocks = compared_blocks_;
  result.copied_blocks = copied_blocks_;
  result.after = result.before;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    for (uint64_t b = slice.first_block; b < slice.first_block + slice.blocks; ++b) {
      if (!result.base.has_value() && captured_[b] == 0) {
        return FailedPreconditionError(
            "version {} is the first the sender captures and lacks tensor '{}': hand over every "
            "tensor",
            version_.value(), layout.tensor(RankSlice(s)).name);
      }
      result.after[s] += block_differences_[b];
      result.nnz += blocks_[b].nnz;
    }
    Mend(RankSlice(s), result.after[s]);
  }
  DWS_CHECK(result.base.has_value() || (result.nnz == 0 && other_blocks_.empty()));
  result.other = profile_;
  result.other_blocks = std::move(other_blocks_);
  if (profile_ == DeltaProfile::kWan && result.base.has_value()) {
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const ClassTable* const table = snapshot_.class_tables().Find(RankSlice(s));
      result.class_tables.push_back(table == nullptr ? std::nullopt : std::optional(*table));
    }
    snapshot_.class_tables().Learn(snapshot_, blocks_, version_, pool_);
  }
  if (result.base.has_value()) {
    result.density = snapshot_.density_watch().Learn(blocks_);
    result.blocks = std::move(blocks_);
  }
  snapshot_.SetVersion(version_, result.after);
  CloseGate();
  return result;
}

void Capture::Undo() {
  DWS_CHECK(open_);
  const RankLayout& layout = snapshot_.layout();
  DecodedBlock decoded;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const EncodedBlock& block = blocks_[slice.first_block + b];
      if (block.mode == BlockMode::kEmpty) continue;
      const MutableByteSpan bytes = snapshot_.BlockBytes(RankSlice(s), b);
      // We encoded it a moment ago: a decoding error is our own bug.
      DWS_CHECK(
          DecodeBlock(slice.dtype, BlockElements(slice.elements, b), ViewOf(block), decoded).ok());
      const StampedChange change = snapshot_.Change(RankSlice(s), b, version_);
      UndoBlock(slice.dtype, decoded, bytes);
    }
  }
  snapshot_.CountUndone();
  CloseGate();
}

void Capture::CloseGate() {
  open_ = false;
  snapshot_.gate().EndCapture();
}

std::vector<BlockRef> AllBlocks(const RankLayout& layout) {
  std::vector<BlockRef> refs;
  refs.reserve(layout.block_count());
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    for (uint32_t b = 0; b < layout.slice(RankSlice(s)).blocks; ++b) {
      refs.push_back({.slice = RankSlice(s), .block = b});
    }
  }
  return refs;
}

}  // namespace dws
