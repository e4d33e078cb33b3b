// Finds the changes in a view from the changes in the trainer's tensors. It looks only at elements
// that changed, and at tiles whose scale moved. A code depends on its element and on its tile's
// amax, so the amax of every tile is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/threads/thread_pool.h"
#include "common/delta/blocks/block.h"
#include "common/quantise/quantise.h"
#include "common/quantise/view.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/capture/listed_changes.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

// One slice of the trainer's that changed.
struct ChangedSlice {
  const quantise::ViewLayout::Slice* slice = nullptr;
  std::span<const EncodedBlock> steps;  // of all its blocks, from the view's version to the newest
  // The amax of its tiles: first of the version before, afterwards of the newest version. Empty:
  // each element is a tile.
  std::span<uint16_t> amax;
  // If the recipe has one scale a matrix: the amax of each matrix, in both versions.
  std::span<const uint16_t> matrix_amax = {};
};

// Lists the changes of some slices after another, in the form that a capture takes. Both snapshots
// and the layout must outlive it. Threads: one at a time; a capture's workers read.
class ViewChanges final : public WeightSource {
 public:
  // `trainer` has the newest version, `view` the one before; no capture of either may run but the
  // one that reads this.
  ViewChanges(Snapshot& trainer, Snapshot& view, ThreadPool& pool);
  ~ViewChanges() override;

  // The blocks of the view that changed. Forgets what was found before.
  std::vector<BlockRef> Find(std::span<const ChangedSlice> slices);

  std::optional<DiffedBlock> Diffed(BlockRef ref) const override;
  // Never called, because every block is Diffed.
  void Read(BlockRef ref, MutableByteSpan block) const override;
  ByteSpan View(BlockRef ref, size_t size_bytes) const override;

 private:
  struct Scratch;

  // One block of the trainer's that changed.
  struct Work {
    size_t slice = 0;
    uint32_t block = 0;
    std::vector<uint16_t> positions;
    std::vector<uint16_t> values;  // the elements there, of a slice that is quantised
    std::vector<uint16_t> amax;    // of their tiles, before; empty: each element is a tile
  };
  // An amax that grew to `magnitude`, or may have shrunk.
  struct Moved {
    static constexpr uint16_t kShrunk = 0;
    uint64_t tile = 0;
    uint16_t magnitude = kShrunk;
  };
  // Elements, numbered in their slice.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // One block of the view that may have changed, and the blocks of the trainer's that it is made
  // of.
  struct Output {
    enum class Kind : uint8_t { kCopy, kCodes, kScales };
    Kind kind = Kind::kCopy;
    size_t slice = 0;
    BlockRef to;
    std::span<const Work> works = {};
    std::vector<uint16_t> positions = {};
    std::vector<std::byte> before = {};
    std::vector<std::byte> after = {};
    Digest difference = {};
  };

  const RankLayout::SliceEntry& From(size_t slice) const {
    return trainer_.layout().slice(slices_[slice].slice->from);
  }
  // The steps of a block of the trainer's slice.
  void Decode(size_t slice, uint32_t block, Scratch& scratch) const;
  // Positions that changed, and the amax that moved.
  void FindMoved(Work& work, Scratch& scratch) const;
  // Updates the amax of one slice, and lists the tiles whose codes all are made again.
  void MoveTiles(size_t slice);
  void FindOutputs(size_t slice, std::span<const Work> works);
  void ListCopy(Output& output, Scratch& scratch) const;
  void ListScales(Output& output) const;
  void ListCodes(Output& output, Scratch& scratch) const;
  void FindCandidates(const Output& output, Scratch& scratch) const;
  // The amax of the candidates' matrices.
  void FindMatrixAmax(const Output& output, Scratch& scratch) const;
  static ListedChanges ChangesOf(const Output& output);

  Snapshot& trainer_;  // only read
  Snapshot& view_;     // only read
  ThreadPool& pool_;
  std::span<const ChangedSlice> slices_;
  std::vector<Scratch> scratch_;              // by worker
  std::vector<std::vector<uint64_t>> tiles_;  // such tiles, by slice, ascending
  std::vector<std::vector<Range>> ranges_;    // their elements, by slice, ascending
  std::vector<Output> outputs_;
  std::vector<uint32_t> numbers_;  // by the view's rank block number: 0, or that in outputs_ plus 1
};

}  // namespace dws
