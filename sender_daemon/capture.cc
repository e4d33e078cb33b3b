#include "sender_daemon/capture.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "common/delta/encoder.h"
#include "common/model/limits.h"

namespace dws {

// What one worker reuses from block to block.
struct Capture::Scratch {
  std::vector<std::byte> current =
      std::vector<std::byte>(size_t{limits::kBlockElements} * sizeof(uint64_t));
  BlockChanges changes;
};

Capture::Capture(Snapshot& snapshot, ThreadPool& pool, WeightVersion version)
    : snapshot_(snapshot),
      pool_(pool),
      version_(version),
      blocks_(snapshot.layout().block_count()),
      block_differences_(snapshot.layout().block_count()),
      captured_(snapshot.layout().block_count()),
      scratch_(pool.worker_count()) {
  snapshot_.gate().BeginCapture();
}

Capture::~Capture() {
  if (open_) Undo();
}

void Capture::CaptureBlock(BlockRef ref, const WeightSource& source, Scratch& scratch) {
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(ref.slice);
  const MutableByteSpan before = snapshot_.BlockBytes(ref.slice, ref.block);
  const uint64_t number = slice.first_block + ref.block;
  const uint64_t first_word = slice.BlockFirstWord(ref.block);
  const MutableByteSpan current(scratch.current.data(), before.size());
  source.Read(ref, current);
  if (!snapshot_.version().has_value()) {  // first version: there is nothing to diff against
    block_differences_[number] = DigestBytes(current, first_word);
    std::memcpy(before.data(), current.data(), current.size());
    return;
  }
  block_differences_[number] = DiffBlock(slice.dtype, before, current, first_word, scratch.changes);
  if (scratch.changes.size() == 0) return;
  blocks_[number] = EncodeBlock(slice.dtype, scratch.changes, current, {.relative = true});
  std::memcpy(before.data(), current.data(), current.size());
}

Status Capture::Blocks(std::span<const BlockRef> refs, const WeightSource& source) {
  DWS_CHECK(open_);
  const RankLayout& layout = snapshot_.layout();
  for (size_t i = 0; i < refs.size(); ++i) {
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
  pool_.ParallelFor(refs.size(), [&](size_t index, size_t worker) {
    CaptureBlock(refs[index], source, scratch_[worker]);
  });
  return OkStatus();
}

Result<CapturedVersion> Capture::Finish() {
  DWS_CHECK(open_);
  const RankLayout& layout = snapshot_.layout();
  CapturedVersion result{
      .version = version_, .base = snapshot_.version(), .before = snapshot_.digests()};
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
  }
  if (result.base.has_value()) result.blocks = std::move(blocks_);
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
      // We encoded it a moment ago: that it does not decode would be our bug.
      DWS_CHECK(DecodeBlock(slice.dtype, BlockElements(slice.elements, b),
                            {.mode = block.mode,
                             .nnz = block.nnz,
                             .parameters = block.parameters,
                             .payload = block.payload},
                            decoded)
                    .ok());
      UndoBlock(slice.dtype, decoded, bytes);
    }
  }
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
