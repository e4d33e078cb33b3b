#include "tools/checkpoint/parts/encode.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/encoder.h"
#include "tools/checkpoint/parts/class_tables.h"

namespace dws::checkpoint {
namespace {

// The bytes of a class table in the manifest. A slice that saves no more than this gets no table.
constexpr uint64_t kClassTableCost = kClassesMax + 3;

// One block of a window.
struct BlockResult {
  EncodedBlock relative;
  EncodedBlock split;   // empty unless it is smaller than `relative`
  EncodedBlock direct;  // the same, only if `relative` is dense
  Digest before;
  Digest difference;
  uint32_t nnz = 0;
  StepCounts steps = {};
};

struct alignas(128) Scratch {
  BlockDiffer differ;
  BlockChanges changes;
  EncodeScratch encode;
};

void CountSteps(DType dtype, const BlockChanges& changes, StepCounts& counts) {
  if (MappingOf(dtype) != Mapping::kFloat) return;
  const uint32_t bits = ElementBytes(dtype) * 8;
  for (const uint64_t step : changes.steps) {
    const int64_t value = SignedStep(step, bits);
    const uint64_t magnitude =
        value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
    ++counts[std::min<size_t>(static_cast<size_t>(std::bit_width(magnitude - 1)), kStepBins - 1)];
  }
}

class Encoder {
 public:
  Encoder(const Walk& walk, BlockSource& source, std::span<const EncodeTarget> targets)
      : walk_(walk),
        source_(source),
        targets_(targets),
        results_(kWindowBlocksMax),
        scratch_(walk.pool.worker_count()),
        changes_(walk.layout.slice_count()) {}

  Result<std::vector<SliceChange>> Run(std::string_view step) {
    if (Wants(Encoding::kWan)) {
      DWS_ASSIGN_OR_RETURN(tables_, LearnClassTables(walk_, source_));
    }
    DWS_RETURN_IF_ERROR(WalkBlocks(
        walk_, step, AllSlices(walk_.layout),
        [this](const WalkedBlock& block, size_t worker) { return Encode(block, worker); },
        [this](std::span<const WalkedBlock> window) { return Deliver(window); },
        [this](std::span<const WalkedBlock> window) { source_.Prepare(window); }));
    return std::move(changes_);
  }

 private:
  bool Wants(Encoding encoding) const {
    return std::any_of(targets_.begin(), targets_.end(), [encoding](const EncodeTarget& target) {
      return target.encoding == encoding;
    });
  }

  Status Encode(const WalkedBlock& block, size_t worker) {
    BlockResult& result = results_[block.index];
    result = BlockResult();
    const RankLayout::SliceEntry& slice = walk_.layout.slice(block.slice);
    const uint64_t first_word = slice.BlockFirstWord(block.block);
    DWS_ASSIGN_OR_RETURN(const BlockStates states, source_.Read(block.slice, block.block, worker));
    result.before = DigestBytes(states.before, first_word);
    if (states.before.data() == states.after.data()) return OkStatus();
    Scratch& scratch = scratch_[worker];
    BlockChanges& changes = scratch.changes;
    result.difference =
        scratch.differ.Diff(slice.dtype, states.before, states.after, first_word, changes);
    if (changes.size() == 0) return OkStatus();
    result.nnz = static_cast<uint32_t>(changes.size());
    CountSteps(slice.dtype, changes, result.steps);
    EncodeChanges(block, states, scratch, result);
    return OkStatus();
  }

  void EncodeChanges(const WalkedBlock& block, const BlockStates& states, Scratch& scratch,
                     BlockResult& result) {
    const DType dtype = walk_.layout.slice(block.slice).dtype;
    result.relative = EncodeSteps(dtype, scratch.changes,
                                  static_cast<uint32_t>(states.after.size() / ElementBytes(dtype)),
                                  scratch.encode);
    if (!tables_.empty() && tables_[block.slice.value()].has_value()) {
      result.split = EncodeClassSplit(dtype, scratch.changes, result.relative, states.before,
                                      *tables_[block.slice.value()], scratch.encode)
                         .value_or(EncodedBlock());
    }
    if (Wants(Encoding::kDirect) && result.relative.mode == BlockMode::kDenseUlp) {
      result.direct = EncodeFullBlock(dtype, states.after, false);
    }
  }

  // Drops the split blocks of a slice that saves less than its table costs. It does so only if all
  // blocks of the slice are in the window.
  void DropSmallSavings(std::span<const WalkedBlock> window) {
    for (size_t i = 0; i < window.size();) {
      const uint32_t blocks = walk_.layout.slice(window[i].slice).blocks;
      const bool whole = window[i].block == 0 && blocks <= window.size() - i;
      const size_t end = whole ? i + blocks : i + 1;
      uint64_t saved = 0;
      for (size_t b = i; b < end; ++b) {
        const BlockResult& result = results_[b];
        if (result.split.mode == BlockMode::kEmpty) continue;
        saved += result.relative.payload.size() - result.split.payload.size();
      }
      for (size_t b = i; whole && saved <= kClassTableCost && b < end; ++b) {
        results_[b].split = EncodedBlock();
      }
      i = end;
    }
  }

  // Takes a target's block out of `result`: moves it if there is only one target, else copies it.
  EncodedBlock Take(Encoding encoding, BlockResult& result) const {
    const auto take = [this](EncodedBlock& block) {
      return targets_.size() == 1 ? std::move(block) : block;
    };
    switch (encoding) {
      case Encoding::kWan:
        if (result.split.mode != BlockMode::kEmpty) return take(result.split);
        break;
      case Encoding::kDirect:
        if (result.direct.mode != BlockMode::kEmpty) return take(result.direct);
        break;
      case Encoding::kFast:
        break;
    }
    return take(result.relative);
  }

  Status Deliver(std::span<const WalkedBlock> window) {
    DropSmallSavings(window);
    for (const WalkedBlock& block : window) {
      BlockResult& result = results_[block.index];
      SliceChange& change = changes_[block.slice.value()];
      change.before += result.before;
      change.after += result.before + result.difference;
      change.nnz += result.nnz;
      for (size_t i = 0; i < kStepBins; ++i) change.steps[i] += result.steps[i];
      const bool last = block.block + 1 == walk_.layout.slice(block.slice).blocks;
      for (const EncodeTarget& target : targets_) {
        DWS_RETURN_IF_ERROR(target.writer->Add(Take(target.encoding, result)));
        if (!last) continue;
        SliceEnd end{.slice = block.slice, .before = change.before, .after = change.after};
        if (!tables_.empty()) end.classes = tables_[block.slice.value()];
        DWS_RETURN_IF_ERROR(target.writer->EndSlice(end));
      }
    }
    return OkStatus();
  }

  const Walk& walk_;
  BlockSource& source_;
  const std::span<const EncodeTarget> targets_;
  ClassTables tables_;                // empty: no target needs them
  std::vector<BlockResult> results_;  // of the window
  std::vector<Scratch> scratch_;      // by worker
  std::vector<SliceChange> changes_;  // by rank slice
};

}  // namespace

Result<std::vector<SliceChange>> EncodeDifference(const Walk& walk, std::string_view step,
                                                  BlockSource& source,
                                                  std::span<const EncodeTarget> targets) {
  return Encoder(walk, source, targets).Run(step);
}

std::vector<Digest> DigestsAfter(std::span<const SliceChange> changes) {
  std::vector<Digest> digests;
  digests.reserve(changes.size());
  for (const SliceChange& change : changes) digests.push_back(change.after);
  return digests;
}

}  // namespace dws::checkpoint
