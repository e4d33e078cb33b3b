// Two checkpoints as a view of them has them (common/quantise/view.h): quantised while they are
// read. If the view's recipe has one scale a matrix, all matrices are read once before.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/threads/thread_pool.h"
#include "common/quantise/view.h"
#include "tools/checkpoint/parts/block_source.h"

namespace dws::checkpoint {

// The blocks are those of the view's layout. Reads codes and scales only after Prepare, in the
// order of a walk over all slices. Holds, of both checkpoints, the codes of one window and of the
// rows of tiles that it begins and ends in, and the scales of the tensors in it. Lifecycle: all
// arguments of the constructor must outlive it.
class ViewSource final : public BlockSource {
 public:
  // `before[i]` and `after[i]` are rank slice i of the layout that `view` is of, which has whole
  // tensors.
  ViewSource(const quantise::ViewLayout& view, std::vector<const CheckpointTensor*> before,
             std::vector<const CheckpointTensor*> after, ThreadPool& pool);

  void Prepare(std::span<const WalkedBlock> window) override;
  bool IsReady(RankSlice slice) const override;
  Result<BlockStates> Read(RankSlice slice, uint32_t block, size_t worker) override;

  // Codes that differ, of the blocks that were read.
  uint64_t changed_codes() const;

 private:
  // What a slice of the view is made of.
  struct Bytes {
    std::vector<std::byte> before;
    std::vector<std::byte> after;
  };
  struct Origin {
    const quantise::ViewLayout::Slice* from = nullptr;  // null: its bytes are `made`
    bool is_scales = false;
    Bytes made;  // shapes, or scales of matrices
  };
  // The amax of each matrix of a stack.
  struct Amax {
    std::vector<uint16_t> before;
    std::vector<uint16_t> after;
  };
  // The rows of tiles that some blocks of codes lie in.
  struct Band {
    uint64_t first_byte = 0;  // of the slice
    Bytes codes;
  };
  // Rows of tiles of one matrix, to be quantised at once.
  struct Piece {
    const quantise::ViewLayout::Slice* slice = nullptr;
    uint64_t first_row = 0;  // of all matrices
    uint64_t rows = 0;
    Band* band = nullptr;
    Bytes* scales = nullptr;  // of tiles; null: the recipe has none
  };

  void FindAmax();
  void AddBand(RankSlice slice, uint32_t first_block, uint32_t last_block,
               std::vector<Piece>& pieces);
  void QuantisePiece(const Piece& piece, bool after);

  const quantise::ViewLayout& view_;
  const std::vector<const CheckpointTensor*> before_;
  const std::vector<const CheckpointTensor*> after_;
  ThreadPool& pool_;
  std::vector<Origin> origins_;        // by the view's rank slice
  std::vector<Amax> amax_;             // by view_.matrices()
  std::map<RankSlice, Band> bands_;    // by slice of codes: those of the window
  std::map<RankSlice, Bytes> scales_;  // by slice of scales: whole ones
  std::vector<uint32_t>
      changed_codes_;  // by the view's rank block number; a block may be read twice
};

}  // namespace dws::checkpoint
