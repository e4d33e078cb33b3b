#include "sender_daemon/capture/capture.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "common/model/full_cost.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/full/counting_copy.h"

namespace dws {

namespace {

// What a worker takes at once. Large enough that the cost of claiming it, and of a cache line
// shared with the next worker's results, does not matter even when every block is a few bytes.
constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr size_t kBatchBlocks = 1024;
// Several batches per worker, so that the other workers do not wait long for a late one.
constexpr size_t kBatchesPerWorker = 8;
// Slices with payloads up to this size get their frames inside the capture. Frames of larger slices
// are left to sealing: otherwise one worker would still be making frames when the others are done.
constexpr uint64_t kFramedBytesMax = uint64_t{8} << 20;

std::array<uint64_t, kBlockModes> PayloadBytes(std::span<const EncodedBlock> blocks) {
  std::array<uint64_t, kBlockModes> bytes = {};
  for (const EncodedBlock& block : blocks) {
    bytes[static_cast<size_t>(block.mode)] += block.payload.size();
  }
  return bytes;
}

uint64_t SumOf(const std::array<uint64_t, kBlockModes>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

}  // namespace

void CapturedVersion::DropFramed(const RankLayout& layout) {
  if (open_delta == nullptr) return;
  for (const FramedSlice& framed : open_delta->Slices()) {
    const RankLayout::SliceEntry& slice = layout.slice(framed.slice);
    for (EncodedBlock& block : std::span(blocks).subspan(slice.first_block, slice.blocks)) {
      block.payload = {};
    }
  }
}

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

// Only captures change the snapshot's version, and there is one at a time.
Capture::Capture(Snapshot& snapshot, ThreadPool& pool, WeightVersion version, DeltaProfile profile,
                 FullCause full, std::function<void()> on_fetchable)
    : snapshot_(snapshot),
      pool_(pool),
      version_(version),
      full_(snapshot.version().has_value() ? full : FullCause::kFirst),
      profile_(full_ == FullCause::kNone ? profile : DeltaProfile::kFast),
      blocks_(snapshot.layout().block_count()),
      block_differences_(snapshot.layout().block_count()),
      captured_(snapshot.layout().block_count()),
      scratch_(pool.worker_count()) {
  snapshot_.gate().BeginCapture();
  if (profile_ != DeltaProfile::kFast) other_blocks_.resize(blocks_.size());
  if (full_ != FullCause::kNone) {
    snapshot_.in_flight().SetReplacing(version_);
    return;
  }
  snapshot_.reads().DropSpare();
  if (on_fetchable == nullptr) return;
  const RankLayout& layout = snapshot.layout();
  uncaptured_ = std::vector<std::atomic<uint32_t>>(layout.slice_count());
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    uncaptured_[s].store(layout.slice(RankSlice(s)).blocks, std::memory_order_relaxed);
  }
  open_delta_ =
      std::make_shared<OpenDelta>(version_, *snapshot.version(), profile_, std::move(on_fetchable));
  snapshot_.in_flight().SetOpenDelta(open_delta_);
}

Capture::~Capture() {
  if (open_) Undo();
}

// A first version has nothing to compare with, and a trainer that asked for a full version wants
// one whatever the size of a delta.
bool Capture::InSample(uint64_t number) const {
  return full_ == FullCause::kDense && snapshot_.history().full_watch.InSample(number);
}

void Capture::ReplaceBlock(BlockRef ref, const WeightSource& source, Scratch& scratch) {
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(ref.slice);
  const MutableByteSpan block = snapshot_.BlockBytes(ref.slice, ref.block);
  const uint64_t number = slice.first_block + ref.block;
  const uint64_t first_word = slice.BlockFirstWord(ref.block);
  const ByteSpan current = scratch.Current(source, ref, block.size());
  if (kept_ != nullptr) kept_->Keep(number, block);
  const StampedChange change = snapshot_.Change(ref.slice, ref.block, version_);
  if (full_ != FullCause::kDense) {  // nothing to compare with, or nobody asks what changed
    block_differences_[number] = CopyAndDigest(block, current, first_word);
    return;
  }
  if (!replaced_digests_.empty()) replaced_digests_[number] = DigestBytes(block, first_word);
  if (InSample(number)) {
    scratch.differ.Diff(slice.dtype, block, current, first_word, scratch.changes);
    if (scratch.changes.size() > 0) Encode(ref, block, scratch);
    scratch.differ.Update(block);
  } else {
    blocks_[number].nnz =
        static_cast<uint32_t>(CopyCounting(ElementBytes(slice.dtype), current, block));
  }
  block_differences_[number] = DigestBytes(block, first_word);
}

void Capture::CaptureBlock(BlockRef ref, const WeightSource& source, Scratch& scratch) {
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(ref.slice);
  const MutableByteSpan before = snapshot_.BlockBytes(ref.slice, ref.block);
  const uint64_t number = slice.first_block + ref.block;
  const uint64_t first_word = slice.BlockFirstWord(ref.block);
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
                                      ? snapshot_.history().class_tables.Find(ref.slice)
                                      : nullptr;
  // Class-split needs positions, and stays smaller than dense steps up to a higher density.
  if (table == nullptr &&
      snapshot_.history().density_watch.EncodesDense(ref.slice, scratch.changes.size(), elements)) {
    blocks_[number] = EncodeDenseSteps(slice.dtype, scratch.changes, elements, scratch.encode);
    return;
  }
  blocks_[number] = EncodeSteps(slice.dtype, scratch.changes, elements, scratch.encode);
  if (table == nullptr) return;
  other_blocks_[number] = EncodeClassSplit(slice.dtype, scratch.changes, blocks_[number], before,
                                           *table, scratch.encode)
                              .value_or(EncodedBlock());
}

void Capture::CountCaptured(RankSlice slice) {
  // The worker that takes the last block sees the blocks of the other workers.
  if (uncaptured_[slice.value()].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  // Receivers will refuse its frames: the digest before is wrong.
  if (snapshot_.distrusts(slice)) return;
  const RankLayout::SliceEntry& entry = snapshot_.layout().slice(slice);
  const auto blocks = [&entry](std::vector<EncodedBlock>& of) {
    return of.empty() ? std::span<EncodedBlock>()
                      : std::span(of).subspan(entry.first_block, entry.blocks);
  };
  if (SumOf(PayloadBytes(blocks(blocks_))) > kFramedBytesMax) return;
  const ClassTable* const table =
      profile_ == DeltaProfile::kWan ? snapshot_.history().class_tables.Find(slice) : nullptr;
  std::optional<FramedSlice> framed =
      FrameSlice(slice, profile_, blocks(blocks_), blocks(other_blocks_),
                 table == nullptr ? std::nullopt : std::optional(*table));
  if (!framed.has_value()) return;
  std::ranges::fill(blocks(other_blocks_), EncodedBlock());  // Undo needs only blocks_
  open_delta_->Add(*std::move(framed));
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

Status Capture::Blocks(std::span<const BlockRef> refs, WeightSource& source,
                       const OnRead& on_read) {
  DWS_CHECK(open_ && !broken_);
  DWS_RETURN_IF_ERROR(Claim(refs));
  // Slices that are handed over whole need no digest of what they replace.
  if (full_ == FullCause::kDense && refs.size() < blocks_.size()) {
    replaced_digests_.resize(blocks_.size());
  }
  uint64_t changed = 0;  // elements, of the blocks so far
  while (!refs.empty()) {
    const Result<FetchedBlocks> fetched = source.Fetch(
        refs, full_ == FullCause::kNone ? FetchAs::kChanges : FetchAs::kWhole, snapshot_, pool_);
    broken_ = !fetched.ok();
    DWS_RETURN_IF_ERROR(fetched.status());
    DWS_CHECK(fetched->count > 0 && fetched->count <= refs.size());
    DWS_CHECK(fetched->compared + fetched->copied + fetched->listed <= fetched->count);
    seconds_ += fetched->seconds;
    const std::span<const BlockRef> ready = refs.first(fetched->count);
    if (on_read != nullptr && fetched->changed.has_value() && ready.size() == refs.size()) {
      on_read(changed + *fetched->changed);
    }
    {
      const StageTime time(seconds_.encode);
      CaptureReady(ready, source);
    }
    compared_blocks_ += fetched->compared;
    copied_blocks_ += fetched->copied;
    listed_blocks_ += fetched->listed;
    refs = refs.subspan(fetched->count);
    if (refs.empty()) break;  // on_read was called already, if the source reports changes
    for (const BlockRef ref : ready) {
      changed += blocks_[snapshot_.layout().slice(ref.slice).first_block + ref.block].nnz;
    }
  }
  return OkStatus();
}

void Capture::CaptureReady(std::span<const BlockRef> refs, const WeightSource& source) {
  const bool full = full_ != FullCause::kNone;
  if (full && !std::exchange(replaced_, true) && full_ != FullCause::kFirst) {
    kept_ = snapshot_.reads().BeginOverwrite(*snapshot_.version());
  }
  const std::vector<size_t> ends = Batches(refs);
  pool_.ParallelFor(ends.size(), [&](size_t batch, size_t worker) {
    for (size_t i = batch == 0 ? 0 : ends[batch - 1]; i < ends[batch]; ++i) {
      if (full) {
        ReplaceBlock(refs[i], source, scratch_[worker]);
      } else {
        CaptureBlock(refs[i], source, scratch_[worker]);
        if (open_delta_ != nullptr) CountCaptured(refs[i].slice);
      }
    }
  });
}

// A digest that is only updated with changes stays wrong for ever once a bit has flipped. After all
// blocks of the slice were captured, its bytes are the trainer's again, so the digest is recomputed
// from them. Receivers find that the steps do not lead to the new digest, and fetch the slice in
// full.
bool Capture::Mend(RankSlice slice, Digest& after) {
  if (!snapshot_.distrusts(slice)) return false;
  const RankLayout::SliceEntry& entry = snapshot_.layout().slice(slice);
  if (CapturedOf(entry) < entry.blocks) return false;
  after = snapshot_.DigestBlocks(slice, 0, entry.blocks);
  snapshot_.SetDistrust(slice, false);
  return true;
}

uint64_t Capture::CapturedOf(const RankLayout::SliceEntry& slice) const {
  const auto first = captured_.begin() + static_cast<ptrdiff_t>(slice.first_block);
  return static_cast<uint64_t>(std::count(first, first + slice.blocks, 1));
}

Status Capture::CheckWhole() const {
  const RankLayout& layout = snapshot_.layout();
  const auto lacking = std::find_if(
      layout.slices().begin(), layout.slices().end(),
      [this](const RankLayout::SliceEntry& slice) { return CapturedOf(slice) < slice.blocks; });
  if (lacking == layout.slices().end()) return OkStatus();
  const char* what = "is the first the sender captures";
  if (full_ == FullCause::kAsked) {
    what = "is to be a full one";
  } else if (snapshot_.newest().has_value()) {
    what = "follows a full version that was given up";
  }
  return FailedPreconditionError("version {} {} and lacks tensor '{}': hand over every tensor",
                                 version_.value(), what,
                                 layout.shards()[lacking->shard].tensor.name);
}

Result<CapturedVersion> Capture::Finish() {
  DWS_CHECK(open_ && !broken_);
  if (full_ == FullCause::kFirst || full_ == FullCause::kAsked) DWS_RETURN_IF_ERROR(CheckWhole());
  CapturedVersion result = full_ == FullCause::kNone ? FinishDelta() : FinishFull();
  result.compared_blocks = compared_blocks_;
  result.copied_blocks = copied_blocks_;
  result.listed_blocks = listed_blocks_;
  result.seconds = seconds_;
  snapshot_.SetVersion(version_, result.after);
  CloseGate();
  return result;
}

CapturedVersion Capture::FinishFull() {
  const RankLayout& layout = snapshot_.layout();
  CapturedVersion result{.version = version_, .full = full_, .after = snapshot_.digests()};
  uint64_t sample_bytes = 0;
  bool whole = true;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    // The trainer's bytes alone decide, unless some of the slice are older.
    const bool slice_whole = CapturedOf(slice) == slice.blocks;
    whole = whole && slice_whole;
    if (slice_whole) {
      result.after[s] = {};
      snapshot_.SetDistrust(RankSlice(s), false);
    }
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const uint64_t number = slice.first_block + b;
      if (captured_[number] == 0) continue;
      result.after[s] += block_differences_[number];
      if (!slice_whole) result.after[s] -= replaced_digests_[number];
      result.nnz += blocks_[number].nnz;
      if (InSample(number)) {
        sample_bytes += snapshot_.BlockBytes(RankSlice(s), b).size();
      }
    }
  }
  if (full_ == FullCause::kDense) {
    std::optional<double> delta_share;
    if (sample_bytes != 0) delta_share = Share(SumOf(PayloadBytes(blocks_)), sample_bytes);
    snapshot_.history().full_watch.Learn(
        {.delta_share = delta_share, .changed = result.nnz, .whole = whole});
  }
  CloseKept();
  return result;
}

void Capture::CloseKept() {
  if (kept_ == nullptr) return;
  const RankLayout& layout = snapshot_.layout();
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      // Each block was kept before it was replaced, so the remaining blocks still have their old
      // bytes.
      if (kept_->Wants(slice.first_block + b)) {
        kept_->Keep(slice.first_block + b, snapshot_.BlockBytes(RankSlice(s), b));
      }
    }
  }
  kept_->Close();
}

CapturedVersion Capture::FinishDelta() {
  const RankLayout& layout = snapshot_.layout();
  CapturedVersion result{
      .version = version_, .base = snapshot_.version(), .before = snapshot_.digests()};
  result.after = result.before;
  bool whole = true;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    for (uint64_t b = slice.first_block; b < slice.first_block + slice.blocks; ++b) {
      result.after[s] += block_differences_[b];
      result.nnz += blocks_[b].nnz;
      whole = whole && captured_[b] != 0;
    }
    if (Mend(RankSlice(s), result.after[s])) result.mended.push_back(RankSlice(s));
  }
  result.other = profile_;
  result.other_blocks = std::move(other_blocks_);
  if (profile_ == DeltaProfile::kWan) {
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const ClassTable* const table = snapshot_.history().class_tables.Find(RankSlice(s));
      result.class_tables.push_back(table == nullptr ? std::nullopt : std::optional(*table));
    }
    snapshot_.history().class_tables.Learn(snapshot_, blocks_, version_, pool_);
  }
  result.payload_bytes = PayloadBytes(blocks_);
  snapshot_.history().full_watch.Learn(
      {.delta_share = Share(SumOf(result.payload_bytes), layout.size_bytes()),
       .changed = result.nnz,
       .whole = whole});
  result.density = snapshot_.history().density_watch.Learn(blocks_);
  result.blocks = std::move(blocks_);
  result.open_delta = std::move(open_delta_);
  return result;
}

void Capture::Undo() {
  DWS_CHECK(open_);
  if (open_delta_ != nullptr) open_delta_->GiveUp();
  if (full_ == FullCause::kNone) {
    UndoSteps();
  } else if (replaced_ && full_ != FullCause::kFirst) {
    CloseKept();
    LogWarning("full_version_given_up",
               {{"version", version_.value()},
                {"overwritten", snapshot_.version()->value()},
                {"reason",
                 "nothing leads back from it: no full tensors are served until the next version, "
                 "which has to bring every tensor"}});
    snapshot_.Invalidate();
  }
  ++snapshot_.history().undone;
  CloseGate();
}

void Capture::UndoSteps() {
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
}

void Capture::CloseGate() {
  open_ = false;
  snapshot_.in_flight().SetReplacing(std::nullopt);
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
