// A slice with few changed elements is captured from a list of its changes, many such slices at a
// time. Other slices are done one at a time: the tiles of changed blocks are quantised, by a GPU or
// by the host, into memory beside the snapshot, then the blocks of codes and scales in which they
// lie are captured like a trainer's blocks.
#include "sender_daemon/views/view_snapshot.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/memory/available_memory.h"
#include "common/model/limits.h"
#include "common/quantise/quantise.h"
#include "sender_daemon/views/view_changes.h"

namespace dws {
namespace {

// What a worker quantises at once.
constexpr uint64_t kTileElementsAtOnce = uint64_t{1} << 18;

// If more elements changed, all are quantised: then that is faster.
uint64_t ListedMax(uint64_t elements) { return std::max<uint64_t>(elements / 16, 4096); }

// How many changed elements are listed at once, but for those of one slice.
constexpr uint64_t kListedAtOnce = uint64_t{1} << 22;
// The limit of the elements in slices that are listed together: all of them change if all scales
// move.
constexpr uint64_t kListedElements = uint64_t{1} << 28;

uint64_t ChangedIn(std::span<const EncodedBlock> steps) {
  return std::accumulate(steps.begin(), steps.end(), uint64_t{0},
                         [](uint64_t sum, const EncodedBlock& block) { return sum + block.nnz; });
}

// `runs` in parts of about `tiles` each.
std::vector<quantise::TileRun> Split(std::span<const quantise::TileRun> runs, uint64_t tiles) {
  std::vector<quantise::TileRun> parts;
  for (const quantise::TileRun& run : runs) {
    for (uint64_t done = 0; done < run.count; done += tiles) {
      parts.push_back({.first = run.first + done, .count = std::min(tiles, run.count - done)});
    }
  }
  return parts;
}

// Returns whether changes are listed element by element. A recipe that transposes has the elements
// of a block in many blocks: its tiles are quantised as wholes.
bool IsListed(const quantise::ViewLayout::Slice& slice) {
  return !slice.grid.has_value() || !slice.grid->recipe().is_transposed();
}

// Returns the number of tiles whose largest magnitude is kept.
uint64_t TilesOf(const quantise::ViewLayout::Slice& slice) {
  const bool keeps = slice.grid.has_value() && slice.scales.has_value() && IsListed(slice);
  return keeps ? slice.grid->tile_count() : 0;
}

// Returns whether the trainer's version is one of steps from `before`.
bool LeadsFrom(const CapturedVersion* trainer, const std::optional<WeightVersion>& before) {
  return trainer != nullptr && before.has_value() && trainer->base == before;
}

std::vector<BlockRef> RefsOf(RankSlice slice, std::span<const uint32_t> blocks) {
  std::vector<BlockRef> refs;
  refs.reserve(blocks.size());
  for (const uint32_t block : blocks) refs.push_back({.slice = slice, .block = block});
  return refs;
}

}  // namespace

// The bytes of whole slices, where they were made.
class ViewSnapshot::Source final : public WeightSource {
 public:
  explicit Source(const RankLayout& layout) : layout_(layout) {}

  void Set(RankSlice slice, ByteSpan bytes) {
    DWS_CHECK(bytes.size() == layout_.slice(slice).size_bytes());
    slices_[next_++ % 2] = {slice, bytes};
  }
  // Returns room for codes or for scales, with arbitrary bytes in it.
  MutableByteSpan Room(bool scales, size_t size) {
    std::vector<std::byte>& room = rooms_[scales ? 1 : 0];
    if (room.size() < size) room.resize(size);
    return {room.data(), size};
  }

  void Read(BlockRef ref, MutableByteSpan block) const override {
    const ByteSpan from = View(ref, block.size());
    std::memcpy(block.data(), from.data(), from.size());
  }
  ByteSpan View(BlockRef ref, size_t size_bytes) const override {
    for (const auto& [slice, bytes] : slices_) {
      if (slice != ref.slice || bytes.empty()) continue;
      const size_t block_bytes =
          size_t{limits::kBlockElements} * ElementBytes(layout_.slice(slice).dtype);
      return bytes.subspan(ref.block * block_bytes, size_bytes);
    }
    DWS_CHECK(false);
    return {};
  }

 private:
  const RankLayout& layout_;
  std::pair<RankSlice, ByteSpan> slices_[2];  // codes and scales, or a copy
  size_t next_ = 0;
  std::vector<std::byte> rooms_[2];
};

Result<std::unique_ptr<ViewSnapshot>> ViewSnapshot::Create(const std::string& name,
                                                           RankStatePtr trainer,
                                                           const DeltaLogLimits& limits,
                                                           std::shared_ptr<DeviceTiles> device) {
  DWS_ASSIGN_OR_RETURN(quantise::ViewLayout view,
                       quantise::ViewLayout::Create(name, trainer->layout()));
  const uint64_t bytes = view.layout().size_bytes();
  uint64_t tiles = 0;
  for (const quantise::ViewLayout::Slice& slice : view.slices()) tiles += TilesOf(slice);
  const uint64_t needed = bytes + tiles * sizeof(uint16_t);
  if (const uint64_t available = AvailableMemoryBytes(); needed > available) {
    return ResourceExhaustedError("a view needs {} MiB, {} MiB are available", needed >> 20,
                                  available >> 20);
  }
  DWS_ASSIGN_OR_RETURN(auto snapshot,
                       Snapshot::Create(view.layout(), trainer->snapshot->huge_pages()));
  auto log = std::make_shared<DeltaLog>(view.layout(), limits);
  auto state = std::make_shared<const RankState>(RankState{.stream = trainer->stream,
                                                           .trainer_rank = trainer->trainer_rank,
                                                           .world_size = trainer->world_size,
                                                           .rank_epoch = trainer->rank_epoch,
                                                           .declared = view.layout(),
                                                           .snapshot = std::move(snapshot),
                                                           .log = std::move(log)});
  std::vector<std::vector<uint16_t>> amax;
  for (const quantise::ViewLayout::Slice& slice : view.slices()) {
    amax.emplace_back(TilesOf(slice));
  }
  return std::unique_ptr<ViewSnapshot>(new ViewSnapshot(
      std::move(trainer), std::move(view), std::move(state), std::move(amax), std::move(device)));
}

std::span<const EncodedBlock> ViewSnapshot::StepsOf(RankSlice slice,
                                                    const CapturedVersion& trainer) const {
  const RankLayout::SliceEntry& entry = trainer_->layout().slice(slice);
  return std::span(trainer.blocks).subspan(entry.first_block, entry.blocks);
}

std::vector<MatrixAmax::Steps> ViewSnapshot::ListableSlices(bool steps,
                                                            const CapturedVersion* trainer) const {
  std::vector<MatrixAmax::Steps> listable(view_.slices().size());
  for (size_t s = 0; steps && s < listable.size(); ++s) {
    if (IsListed(view_.slices()[s])) listable[s] = Listable(view_.slices()[s].from, *trainer);
  }
  return listable;
}

const MatrixAmax& ViewSnapshot::Measure(WeightVersion version, const CapturedVersion* trainer,
                                        ThreadPool& pool) {
  if (measured_ == version || view_.matrices().empty()) return matrix_amax_;
  const bool steps = LeadsFrom(trainer, measured_);
  // The tiles' are of the view's version, which is an older one if an exchange failed.
  std::span<const std::vector<uint16_t>> tiles;
  if (state_->snapshot->version() == measured_) tiles = amax_;
  matrix_amax_.Measure(*trainer_->snapshot, ListableSlices(steps, trainer), tiles, pool);
  measured_ = version;
  return matrix_amax_;
}

CapturedVersion ViewSnapshot::CaptureVersion(WeightVersion version, const CapturedVersion* trainer,
                                             ThreadPool& pool, const MatrixAmax::Others* others) {
  DWS_CHECK(divided_ == (others != nullptr));
  DWS_CHECK(!divided_ || measured_ == version);  // what others say is about what was measured
  Snapshot& snapshot = *state_->snapshot;
  const bool first = !snapshot.version().has_value();
  const bool steps = LeadsFrom(trainer, snapshot.version());
  Measure(version, trainer, pool);
  const FullCause cause = snapshot.history().full_watch.Cause(state_->log->AllDirect());
  Capture capture(snapshot, pool, version, state_->log->Asked(), cause);
  ViewChanges changes(*trainer_->snapshot, snapshot, pool);
  std::vector<ChangedSlice> listed;
  uint64_t listed_changes = 0;
  uint64_t listed_elements = 0;
  const auto capture_listed = [&] {
    const std::vector<BlockRef> refs = changes.Find(listed);
    DWS_CHECK(capture.Blocks(refs, changes).ok());
    listed.clear();
    listed_changes = 0;
    listed_elements = 0;
  };
  const std::vector<MatrixAmax::Steps> listable = ListableSlices(steps, trainer);
  const std::vector<bool> moved =
      matrix_amax_.Share(others != nullptr ? *others : MatrixAmax::Others(view_.matrices().size()));
  Source source(view_.layout());
  for (size_t s = 0; s < view_.slices().size(); ++s) {
    const quantise::ViewLayout::Slice& slice = view_.slices()[s];
    // A mended slice needs every block, on either side; so does a slice with another scale.
    const bool whole = snapshot.distrusts(slice.codes) ||
                       (steps && IsMended(slice.from, *trainer)) ||
                       (slice.scales.has_value() && snapshot.distrusts(*slice.scales)) ||
                       (slice.matrices.has_value() && moved[*slice.matrices]);
    if (listable[s].has_value() && !whole && cause == FullCause::kNone) {
      const uint64_t changed = ChangedIn(*listable[s]);
      if (changed == 0) continue;
      listed.push_back({.slice = &slice,
                        .steps = *listable[s],
                        .amax = amax_[s],
                        .matrix_amax = matrix_amax_.Of(slice)});
      listed_changes += changed;
      listed_elements += trainer_->layout().slice(slice.from).elements;
      if (listed_changes >= kListedAtOnce || listed_elements >= kListedElements) capture_listed();
      continue;
    }
    std::vector<uint32_t> blocks;
    for (uint32_t b = 0; b < trainer_->layout().slice(slice.from).blocks; ++b) {
      if (!steps || whole || StepsOf(slice.from, *trainer)[b].nnz > 0) blocks.push_back(b);
    }
    if (!blocks.empty()) CaptureSlice(slice, blocks, amax_[s], pool, source, capture);
  }
  capture_listed();
  for (size_t m = 0; m < moved.size(); ++m) {
    const bool distrusted = std::ranges::any_of(
        view_.matrices()[m].scales, [&](RankSlice scales) { return snapshot.distrusts(scales); });
    if (moved[m] || distrusted) CaptureMatrixScales(m, source, capture);
  }
  for (const quantise::ViewLayout::Constant& constant : view_.constants()) {
    if (!first) break;
    const MutableByteSpan bytes =
        source.Room(false, view_.layout().slice(constant.slice).size_bytes());
    if (!bytes.empty()) quantise::WriteShapes(constant.shape, bytes);
    CaptureWhole(constant.slice, bytes, source, capture);
  }
  auto captured = capture.Finish();
  DWS_CHECK(captured.ok());  // a first one has every block
  return *std::move(captured);
}

void ViewSnapshot::CaptureWhole(RankSlice slice, ByteSpan bytes, Source& source,
                                Capture& capture) const {
  std::vector<uint32_t> blocks(view_.layout().slice(slice).blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  source.Set(slice, bytes);
  DWS_CHECK(capture.Blocks(RefsOf(slice, blocks), source).ok());
}

bool ViewSnapshot::IsMended(RankSlice slice, const CapturedVersion& trainer) const {
  return trainer_->snapshot->distrusts(slice) ||
         std::ranges::find(trainer.mended, slice) != trainer.mended.end();
}

MatrixAmax::Steps ViewSnapshot::Listable(RankSlice slice, const CapturedVersion& trainer) const {
  const std::span<const EncodedBlock> steps = StepsOf(slice, trainer);
  if (IsMended(slice, trainer)) return std::nullopt;
  if (ChangedIn(steps) > ListedMax(trainer_->layout().slice(slice).elements)) return std::nullopt;
  return steps;
}

void ViewSnapshot::CaptureMatrixScales(size_t matrices, Source& source, Capture& capture) {
  for (const RankSlice scales : view_.matrices()[matrices].scales) {
    const MutableByteSpan bytes = source.Room(false, view_.layout().slice(scales).size_bytes());
    quantise::WriteTensorScales(view_.recipe(), matrix_amax_.Shared(matrices), bytes);
    CaptureWhole(scales, bytes, source, capture);
  }
}

void ViewSnapshot::CaptureSlice(const quantise::ViewLayout::Slice& slice,
                                const std::vector<uint32_t>& blocks, std::span<uint16_t> amax,
                                ThreadPool& pool, Source& source, Capture& capture) {
  const ByteSpan from = trainer_->snapshot->SliceBytes(slice.from);
  if (!slice.grid.has_value()) {
    source.Set(slice.codes, from);
    DWS_CHECK(capture.Blocks(RefsOf(slice.codes, blocks), source).ok());
    return;
  }
  const quantise::TileGrid& grid = *slice.grid;
  std::vector<quantise::TileRun> runs = grid.Touched(blocks);
  // Blocks of the outputs may also have other tiles: these are not changed.
  Snapshot& snapshot = *state_->snapshot;
  std::vector<BlockRef> refs;
  const auto prepare = [&](quantise::Role role, RankSlice to) {
    const std::vector<uint32_t> touched = grid.OutputBlocks(role, runs);
    const MutableByteSpan room =
        source.Room(role == quantise::Role::kScales, snapshot.SliceBytes(to).size());
    for (const uint32_t block : touched) {
      const ByteSpan old = snapshot.BlockBytes(to, block);
      const size_t offset = static_cast<size_t>(old.data() - snapshot.SliceBytes(to).data());
      std::memcpy(room.data() + offset, old.data(), old.size());
    }
    const std::vector<BlockRef> more = RefsOf(to, touched);
    refs.insert(refs.end(), more.begin(), more.end());
    source.Set(to, room);
    return room;
  };
  quantise::Destination to{.codes = prepare(quantise::Role::kCodes, slice.codes), .amax = amax};
  if (slice.scales.has_value()) to.scales = prepare(quantise::Role::kScales, *slice.scales);
  const std::span<const uint16_t> matrix_amax = matrix_amax_.Of(slice);
  if (device_ != nullptr) {
    runs = device_->Quantise(slice.from, {.grid = grid, .tensor_amax = matrix_amax, .to = to},
                             std::move(runs), pool);
  }
  const uint64_t tile_elements = grid.tile_rows() * grid.tile_columns();
  const std::vector<quantise::TileRun> parts =
      Split(runs, std::max<uint64_t>(1, kTileElementsAtOnce / tile_elements));
  pool.ParallelFor(parts.size(), [&](size_t part, size_t) {
    quantise::Quantise(ActiveInstructionSet(), grid, from, matrix_amax,
                       std::span(parts).subspan(part, 1), to);
  });
  DWS_CHECK(capture.Blocks(refs, source).ok());
}

}  // namespace dws
