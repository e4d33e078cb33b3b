// A view: the tensors that quantised engines hold in place of the trainer's tensors. Its layout
// follows from the layout of the trainer's rank and from its name, so senders and receivers need
// nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/refinement.h"
#include "common/quantise/recipe.h"
#include "common/quantise/shared_scales.h"
#include "common/quantise/tile_grid.h"

namespace dws::quantise {

// Tells what becomes of each tensor. A recipe, unless it is empty, quantises every BF16 tensor of
// two or more dimensions whose name ends as the recipe's ending() and is not left out. Tensors
// that are left out, and all others, are unchanged.
struct View {
  Recipe recipe;
  // Patterns of tensor names that are left out; '*' is any number of characters.
  std::vector<std::string> except;
  // For a recipe with one scale a matrix: the tensors that share their scales.
  std::vector<SharedParts> shares;

  bool Quantises(const TensorSpec& tensor) const;
};

// "fp8-block128/deepseek", "fp8-block128/deepseek,except=lm_head.weight,except=*.gate.weight".
// "nvfp4/modelopt,share=q_proj+k_proj+v_proj,share=gate_proj+up_proj". INVALID_ARGUMENT: there is
// no such recipe, the name is too long or has characters that cannot be printed, a part of it is
// not understood, or the recipe has no scale that tensors could share.
Result<View> ParseView(std::string_view name);

// The cuts of the view's tensors as cuts of the trainer's tensors that they are made of. Tensors
// that the trainer's layout does not lead to are passed over. INVALID_ARGUMENT: as CanonicalCuts.
Result<CutWishes> TrainerCuts(const View& view, const RankLayout& trainer, const CutWishes& wishes);

// The layout of a view of one trainer rank, and where each slice comes from. Immutable. Threads:
// safe to read from any.
class ViewLayout {
 public:
  // What becomes of one slice of the trainer's. An empty slice has no entry.
  struct Slice {
    RankSlice from;   // in the trainer's layout
    RankSlice codes;  // or the slice that it is copied to
    std::optional<RankSlice> scales;
    std::optional<TileGrid> grid;    // none: it is copied
    std::optional<size_t> matrices;  // in matrices(), where the recipe has one scale a matrix
  };
  // Slices whose matrices share their scales, the first with the first: all parts that the rank has
  // of the same matrices, and of those that share their scales.
  struct Matrices {
    uint64_t count = 0;          // of matrices in each stack
    uint32_t parts = 0;          // slices that make them up in all ranks
    std::vector<size_t> slices;  // in slices()
    std::vector<RankSlice> scales;

    // Returns whether other ranks have parts of them.
    bool IsDivided() const { return slices.size() < parts; }
  };
  // A tensor of the trainer's that is quantised, where the recipe has one scale a matrix.
  struct MatrixTensor {
    size_t shard = 0;    // in the trainer's layout
    Digest spec;         // ranks that cut the tensor alike have the same one
    uint32_t parts = 1;  // slices that make up one stack of its matrices, in all ranks
    uint32_t first = 0;  // what Matrices::parts counts before its parts
    std::map<uint32_t, size_t> matrices = {};  // in matrices(), by stack: a slice's number / parts
  };
  // A tensor of the view whose bytes follow from shapes alone.
  struct Constant {
    RankSlice slice;
    MatrixShape shape;
  };

  // INVALID_ARGUMENT, naming the tensor: a cut divides a tile, and which boundaries to use; its
  // shape does not fit; two tensors get one name; FindShared.
  static Result<ViewLayout> Create(std::string_view name, const RankLayout& trainer);

  const Recipe& recipe() const { return recipe_; }
  const RankLayout& layout() const { return layout_; }
  const std::vector<Slice>& slices() const { return slices_; }  // by `from`, ascending
  const std::vector<Constant>& constants() const { return constants_; }
  const std::vector<Matrices>& matrices() const { return matrices_; }
  const std::vector<MatrixTensor>& matrix_tensors() const { return matrix_tensors_; }
  // The sets of View::shares, joined by '+', of which the rank has no tensor.
  const std::vector<std::string>& unused_shares() const { return unused_shares_; }
  // Returns the name of a tensor that must have one scale a matrix, and of whose matrices other
  // ranks have parts; nullopt: there is none.
  std::optional<std::string> DividedTensor(const RankLayout& trainer) const;

 private:
  ViewLayout() = default;
  Status FindConstants(const View& view, const RankLayout& trainer);
  Status FindMatrices(const View& view, const RankLayout& trainer);
  // Returns, by shard, the first shard that shares its scale, and adds all to matrix_tensors_.
  Result<std::map<size_t, size_t>> FindMatrixTensors(const View& view, const RankLayout& trainer);

  Recipe recipe_;
  RankLayout layout_;
  std::vector<Slice> slices_;
  std::vector<Constant> constants_;
  std::vector<Matrices> matrices_;
  std::vector<MatrixTensor> matrix_tensors_;  // by shard, ascending
  std::vector<std::string> unused_shares_;
};

}  // namespace dws::quantise
