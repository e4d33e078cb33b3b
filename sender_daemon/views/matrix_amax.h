// The amax of every matrix of a view whose recipe has one scale a matrix, kept from version to
// version: it looks only at elements that changed, and at a whole matrix if its largest element may
// have become smaller.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/threads/thread_pool.h"
#include "common/delta/blocks/block.h"
#include "common/quantise/view.h"
#include "sender_daemon/capture/snapshot.h"

namespace dws {

// Lifecycle: `view` must outlive it. Threads: one at a time.
class MatrixAmax {
 public:
  // What became of one of view.slices() since the last update: nullopt: anything, read all of it;
  // else the steps of all its blocks, none of which changed too much to list.
  using Steps = std::optional<std::span<const EncodedBlock>>;

  explicit MatrixAmax(const quantise::ViewLayout& view)
      : view_(view), parts_(view.slices().size()), shared_(view.matrices().size()) {}

  // Measures the rank's own parts. `steps`: by view.slices(), since the last call; the first time
  // all are nullopt. `tile_amax`: by view.slices(), of each tile at the last call, or empty; empty:
  // none is known. `trainer` has the newest version.
  void Measure(Snapshot& trainer, std::span<const Steps> steps,
               std::span<const std::vector<uint16_t>> tile_amax, ThreadPool& pool);
  // The amax of each matrix in one of view.slices(), as measured.
  std::span<const uint16_t> OfPart(size_t slice) const { return parts_[slice]; }

  // By view.matrices(): the amax that other ranks have found, of each matrix; empty: none has a
  // part.
  using Others = std::vector<std::vector<uint16_t>>;
  // From now on Shared() and Of() are those of what was measured, and of `others`. Returns which of
  // view.matrices() have another amax than before, or have their first.
  std::vector<bool> Share(const Others& others);

  // By matrix of the stack: the amax of all that share the scale. By view.matrices().
  std::span<const uint16_t> Shared(size_t matrices) const { return shared_[matrices]; }
  // Empty if the recipe has no scale of matrices.
  std::span<const uint16_t> Of(const quantise::ViewLayout::Slice& slice) const;

 private:
  // A matrix whose amax grew to `magnitude`, or may have shrunk.
  struct Moved {
    static constexpr uint16_t kShrunk = 0;
    size_t slice = 0;
    uint64_t matrix = 0;
    uint16_t magnitude = kShrunk;
  };
  // A changed element.
  struct Changed {
    uint16_t after = 0;
    uint16_t step = 0;
  };
  struct Scratch {
    DecodedBlock decoded;
    std::vector<Changed> changed;
    std::vector<Moved> moved;
  };

  void FindMoved(Snapshot& trainer, size_t slice, uint32_t block, const EncodedBlock& steps,
                 std::span<const uint16_t> tile_amax, Scratch& scratch) const;
  void Move(Snapshot& trainer, std::vector<Moved> moved, ThreadPool& pool);

  const quantise::ViewLayout& view_;
  std::vector<std::vector<uint16_t>> parts_;   // by view_.slices(): of the slice's own part
  std::vector<std::vector<uint16_t>> shared_;  // by view_.matrices()
};

}  // namespace dws
